"""tj-autograd: gradients as a transform on traces."""
