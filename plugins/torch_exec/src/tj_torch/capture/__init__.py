"""ACQUIRED: from a PyTorch program to a trace."""
