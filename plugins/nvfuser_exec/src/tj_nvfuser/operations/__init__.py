"""The table of operations: translations of ATen operators to nvFuser, by name."""
