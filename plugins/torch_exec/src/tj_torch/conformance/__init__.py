"""Conformance: PyTorch's own databases of operations and modules, eager as the oracle.

`run_operation`, `run_error_inputs` and `run_module` take the ``jit`` to use, so anyone who ships
an executor can run them with it, for instance with
``functools.partial(tj.jit, executors=["mine"])``. `known` lists what differs, and why.
"""
