"""Symbolic sizes: shape environments, symbols of programs, and calls that compute sizes."""
