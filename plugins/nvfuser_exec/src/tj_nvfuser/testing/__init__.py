"""nvFuser imitated by PyTorch on CPUs, to test regions without a GPU."""
