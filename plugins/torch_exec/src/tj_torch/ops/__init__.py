"""Semantics of PyTorch's operations: names, metadata, effects and bodies, read off PyTorch."""
