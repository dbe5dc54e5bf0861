"""tj-inductor: regions of PyTorch operators, compiled by Inductor."""
