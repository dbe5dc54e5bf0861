"""The verifier: checks of traces' form, of stages' invariants, and of metadata."""
