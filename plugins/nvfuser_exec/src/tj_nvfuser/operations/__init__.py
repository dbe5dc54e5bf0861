"""The table of operations: what calls of PyTorch's operators are in nvFuser, by name."""
