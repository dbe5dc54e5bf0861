"""Symbolic sizes: the shape environment, the symbols of a program, the calls that compute sizes."""
