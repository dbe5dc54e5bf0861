"""A process without NumPy, which PyTorch does not need either."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules["numpy"] = None
import tj_core as tj
import torch
def f(x, w):
    return torch.nn.functional.gelu(x @ w) + 1
jitted = tj.jit(f, plugins=["torch", "autograd"])
for n in (4, 5, 6):
    x, w = torch.rand(n, 8, requires_grad=True), torch.rand(8, 3)
    found, expected = jitted(x, w), f(x, w)
    assert torch.equal(found, expected)
    (mine,), (eagers,) = (torch.autograd.grad(y.square().sum(), x) for y in (found, expected))
    torch.testing.assert_close(mine, eagers)
assert not tj.stats(jitted).fallbacks, tj.stats(jitted).fallbacks
print("done")
"""


@pytest.mark.slow
def test_a_process_without_numpy() -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TJ_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True, text=True, env={**environ, "TJ_CACHE_DIR": "none"},
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr
