"""PyTorch's dialects, as the core asks for them: fast functions, values, fingerprint."""
