"""Facts of operations beyond names and metadata: rule tables, effects, marks for autograd."""
