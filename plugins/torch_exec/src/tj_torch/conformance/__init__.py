"""Conformance: PyTorch's own databases of operations and modules, eager as the oracle.

Anyone who ships an executor runs it: ``pytest --pyargs tj_torch.conformance``; the options
``--tj-executor NAME`` and ``TJ_FULL=1`` choose the executor and the full sweep.
"""
