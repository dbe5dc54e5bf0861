"""tj-example-fuser: elementwise operations, fused by numexpr."""
