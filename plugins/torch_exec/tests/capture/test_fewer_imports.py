"""Modules that Dynamo imports for a capture, and that no capture needs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from tj_torch.capture.dynamo.fewer_imports import GENERATED, LAYERS, PYTORCH, Uninteresting
from tj_torch.torch_private import dynamo

PROGRAM = """
import sys, torch, tj_core as tj
from torch.nn.functional import relu
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
jitted = tj.jit(net, plugins=["torch"])
x = torch.rand(2, 3)
torch.testing.assert_close(jitted(x), net(x))
assert not tj.stats(jitted).fallbacks, tj.stats(jitted).fallbacks
found = {".".join(name.split(".")[:3]) for name in sys.modules}
print(*sorted(found & {"networkx", "torch.export._trace", "torch._functorch.partitioners"}))
"""


@pytest.mark.slow
def test_a_capture_imports_no_compiler_of_gradients() -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TJ_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True, text=True, env={**environ, "TJ_CACHE_DIR": "none"},
    )  # fmt: skip
    assert done.stdout == "\n", done.stdout + done.stderr


def test_the_files_that_are_left_out_are_those_that_are_asked_for() -> None:
    files = dynamo.output_graph.uninteresting_files()
    assert [name for name in files if not name.startswith(PYTORCH)] in ([], [GENERATED])
    assert [name for name in files if name.startswith(LAYERS)] == []
    lazily = Uninteresting(lambda: files)
    assert all(name in lazily for name in files)
    assert torch.__file__ in lazily
    assert torch.optim.__file__ not in lazily


def test_the_files_are_not_asked_for_where_they_cannot_matter() -> None:
    def files() -> frozenset[str]:
        raise AssertionError("asked")

    lazily = Uninteresting(files)
    assert __file__ not in lazily
    assert torch.nn.functional.__file__ not in lazily
    with pytest.raises(AssertionError, match="asked"):
        torch.__file__ in lazily  # noqa: B015
