"""Writes to tensors of subclasses: when new values may stand for them."""
