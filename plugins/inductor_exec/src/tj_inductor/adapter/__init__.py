"""Private names of PyTorch that this plugin uses, except for those of `kernels`.

Their behaviour in each version is tested in ``tests/test_adapter.py``. `compiling` imports
Inductor as a whole, and is imported when a region is compiled.
"""
