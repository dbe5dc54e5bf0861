"""tj-nvfuser: regions of PyTorch operators on CUDA devices, compiled by nvFuser."""
