"""One sweep over PyTorch's ``op_db``: each sample runs once in eager, and every way to run it in tj
is compared with that run.
"""
