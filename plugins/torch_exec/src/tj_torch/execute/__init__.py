"""Executors that come with tj-torch."""
