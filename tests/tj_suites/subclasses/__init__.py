"""Programs of tensor subclasses, each of which tj runs as eager does."""
