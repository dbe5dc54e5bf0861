"""Layers in int8: weights, or weights and activations, in inference."""
