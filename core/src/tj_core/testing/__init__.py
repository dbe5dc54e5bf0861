"""Help for testing plugins: pytest fixtures in `tj_core.testing.plugins`.

Empty on purpose: only the modules in here import pytest, and none of them is imported by default.
"""
