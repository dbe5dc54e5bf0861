"""Programs whose meaning is Python's rather than PyTorch's: identity, state, numbers, containers."""
