"""Fusion: which calls of a claimed program stand together in regions, and what a region is."""
