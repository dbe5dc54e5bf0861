"""The verifier: what must hold of traces, of their form, at each stage, in their metadata."""
