"""Names of PyTorch's operations: from a captured target to its symbol, and back."""
