"""Runs on fake tensors: modes, strides as of PyTorch's kernels, and handlers' writes undone."""
