"""Private names of PyTorch: all that tj-torch uses, what for, and what is lost without them."""
