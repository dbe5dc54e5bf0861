"""Fake tensors, with the strides of PyTorch's kernels."""
