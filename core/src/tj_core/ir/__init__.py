"""The data of a program: values, symbols, calls, traces, tags. It depends on nothing else of tj."""
