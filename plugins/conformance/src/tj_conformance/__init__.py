"""Conformance: PyTorch's own databases of operations and modules, eager as the oracle.

Each entry is run through one jitted callable. `run_operation`, `run_error_inputs`, `run_module`
and `run_graphs` take the ``jit`` to use, so anyone who ships an executor can run them with it, for
instance with ``functools.partial(tj.jit, executors=["mine"])``. `known` lists what differs, and
why.

So does `aliasing.check`, which compares a program that writes and aliases in everything that a
caller can see; `programs` makes such programs up.
"""
