"""SPLIT: forward and backward, and what is saved between them."""
