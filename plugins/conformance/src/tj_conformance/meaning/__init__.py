"""Programs whose meaning is Python's and not PyTorch's: identity, state, numbers, containers."""
