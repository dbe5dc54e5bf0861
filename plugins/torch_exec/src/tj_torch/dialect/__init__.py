"""What PyTorch's operations mean: metadata, effects and bodies, read off PyTorch itself.

`expansion` runs one call on fake tensors and describes it; `memo` remembers the result; `convert`
translates between PyTorch's values and the core's; `replay` runs a body.
"""
