"""Eager executor, which runs calls as PyTorch does."""
