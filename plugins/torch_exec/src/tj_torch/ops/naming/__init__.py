"""Naming of PyTorch's operations; the rest of tj uses `tj_torch.ops.names`."""
