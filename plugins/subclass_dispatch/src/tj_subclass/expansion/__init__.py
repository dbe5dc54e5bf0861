"""Calls on tensor subclasses on fake tensors: their bodies and their gradients."""
