"""Capture of programs with TorchDynamo."""
