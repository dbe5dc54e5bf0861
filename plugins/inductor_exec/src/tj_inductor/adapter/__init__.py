"""Private names of PyTorch that this plugin uses, except for those of `kernels`.

What they do in each version is tested in ``tests/test_adapter.py``. `compiling` imports all of
Inductor: only who compiles imports it.
"""
