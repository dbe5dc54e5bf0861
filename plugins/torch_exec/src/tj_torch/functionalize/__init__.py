"""FUNCTIONAL: from a program that writes to one that computes values, and its epilogue."""
