"""One sweep over PyTorch's ``op_db``: each sample runs once in eager, and all that tj says and
does of it is held against that run.
"""
