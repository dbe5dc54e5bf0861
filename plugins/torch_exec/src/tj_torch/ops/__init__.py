"""What PyTorch's operations mean: names, metadata, effects and bodies, read off PyTorch itself."""
