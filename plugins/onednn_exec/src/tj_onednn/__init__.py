"""tj-onednn: matrix products through PyTorch's oneDNN operators, where these are faster."""
