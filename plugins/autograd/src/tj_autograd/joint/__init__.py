"""JOINT: a functional trace and its gradient in one trace."""
