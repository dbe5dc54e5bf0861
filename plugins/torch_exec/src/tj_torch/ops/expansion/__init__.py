"""Expansion: one run of a call on fake tensors, recorded."""
