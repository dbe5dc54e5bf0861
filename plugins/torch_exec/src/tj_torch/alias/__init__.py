"""Mutation and aliasing: from a program as written to a functional one, and what goes around it."""
