"""Tensor subclasses for tj: calls on them become calls on the dense tensors that they hold."""
