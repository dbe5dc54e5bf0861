"""The executor that runs calls as PyTorch does."""
