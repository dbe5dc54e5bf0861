"""CUDA graphs played by a recorder on CPUs, so that what is decided is tested without a GPU."""
