"""Frontends: how a PyTorch program becomes a trace, and how the compiled program is called."""
