"""Fusion: partition the calls of a claimed program into regions, and build the regions."""
