"""CUDA graphs imitated by a recorder on CPUs, to test the plugin's decisions without a GPU."""
