"""Private names of Inductor that a PyTorch lacks: nothing is fused, and programs are right."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import importlib, sys, warnings
import torch
module, _, name = sys.argv[1].rpartition(".")
delattr(importlib.import_module(module), name)
import tj_core as tj

def f(x, w):
    return torch.nn.functional.gelu(x @ w) / 2 + 1

x, w = torch.rand(4, 8, requires_grad=True), torch.rand(8, 3)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    mine = tj.jit(f, session=tj.Session(["...", "autograd", "torch"], disable=["example_fuser"]))
    result = mine(x, w)
    again = mine(x, w)
torch.testing.assert_close(result, f(x, w))
torch.testing.assert_close(again, f(x, w))
grads = (torch.autograd.grad(r.square().sum(), x) for r in (result, f(x, w)))
torch.testing.assert_close(*grads)
said = [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]
assert any("inductor" in s for s in said), said
print(len(said))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name",
    [
        "torch._inductor.codecache.CppPythonBindingsCodeCache",
        "torch._inductor.compile_fx.compile_fx_inner",
        "torch._inductor.lowering.fallback_handler",
        "torch._inductor.decomposition.select_decomp_table",
    ],
)
def test_a_missing_name_costs_fusion(name: str) -> None:
    """The name is imported with the executor, or looked up where a region is compiled."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, name]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TJ_")}
    done = subprocess.run(
        command, capture_output=True, text=True, env={**environ, "TJ_CACHE_DIR": "none"}
    )
    assert done.returncode == 0, done.stderr
