"""The comparison with eager: values, metadata, aliases, and all else that a caller can see."""
