"""How operations of PyTorch are named; `tj_torch.ops.names` is what the rest of tj uses."""
