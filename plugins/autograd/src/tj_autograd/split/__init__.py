"""SPLIT: forward and backward apart, and the values saved between them."""
