"""Conformance of gradients: PyTorch's databases of operations and modules, eager as the oracle.

A sibling of `tj_conformance`, whose results and tables it uses.
"""
