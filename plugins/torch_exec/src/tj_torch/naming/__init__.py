"""How operations of PyTorch are named; `tj_torch.names` is what the rest of tj uses."""
