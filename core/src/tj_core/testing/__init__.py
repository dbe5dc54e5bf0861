"""Help for testing plugins: pytest fixtures in `tj_core.testing.plugins`.

Empty on purpose: pytest is imported only by the modules in here, and only when one is asked for.
"""
