"""PyTorch's own test files, from an unpacked source tree, run on tj.

``python tests/tj_suites upstream PATH [FILES...]`` prints, per file, how many tests fail
with tj alone: they pass without tj, in plain eager and with Dynamo's backend ``eager``. The tests
themselves are no part of this project.

`kinds` says how a file is run, `worker` runs tests in a process of their own, `running` starts such
processes and limits them, `compare` runs failures again without tj, `known` lists what fails with a
reason, `table` prints.
"""
