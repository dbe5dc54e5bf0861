"""PyTorch's databases of operations and modules, held against eager in each way tj has."""
