"""tj-onednn: matrix products through the oneDNN operators in PyTorch, where these are faster."""
