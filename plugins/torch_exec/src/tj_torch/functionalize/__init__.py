"""Functionalization: from a program that writes to one without writes, and its epilogue."""
