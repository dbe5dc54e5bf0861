"""nvFuser's part played by PyTorch on CPUs, so that regions are tested without a GPU."""
