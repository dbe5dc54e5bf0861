"""Capture of PyTorch programs as traces at stage ACQUIRED."""
