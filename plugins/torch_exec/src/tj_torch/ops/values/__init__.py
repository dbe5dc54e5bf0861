"""PyTorch's values as the core's, and back: data types, devices, metadata, constants."""
