"""Distributed training for tj."""
