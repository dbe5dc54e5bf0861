"""Facts about traces: aliases, well-formedness, the verifier. Nothing is changed."""
