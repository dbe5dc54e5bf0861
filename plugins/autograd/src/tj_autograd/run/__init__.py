"""Run time: the boundary to PyTorch's autograd, and the backward programs."""
