"""Programs that took the process with them: they run in one of their own, and as eager does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HARNESS = """
import warnings
import pytest
import torch
import torch._inductor
import tj_core as tj


def outcome(run, emptied):
    full, x, offsets = torch.arange(12.0).reshape(4, 3), torch.ones(4, 3), torch.tensor([0, 2, 4])
    x.untyped_storage().resize_(0) if emptied else x.requires_grad_()
    full.requires_grad_()
    y = run(x, full, offsets)
    y = y.values() if y.is_nested else y
    y.sum().backward()
    return y.detach(), full.grad, x.grad


warnings.simplefilter("ignore")
for text, emptied in {programs}:
    scope = dict(torch=torch)
    exec("def f(x, full, offsets):\\n    " + text, scope)
    f = scope["f"]
    expected = outcome(f, emptied)
    for name, run in dict(jit=tj.jit(f), backend=torch.compile(f, backend="tj")).items():
        print(text, "by", name, flush=True)
        for _ in range(2):
            torch.testing.assert_close(outcome(run, emptied), expected, rtol=0, atol=0)
"""

GROWN = "; x.data.copy_(full); return (x * full).sin()"
STORAGES = [
    "x.untyped_storage().resize_(full.numel() * 4)" + GROWN,
    "torch.ops.inductor.resize_storage_bytes_(x, full.numel() * 4)" + GROWN,
]

JAGGED = [
    "return torch.nested.nested_tensor_from_jagged(x, offsets=offsets)",
    "return torch.nested.nested_tensor_from_jagged(x, offsets=offsets) * 2",
    "return (torch.nested.nested_tensor_from_jagged(x, offsets=offsets) * 2).sin().values()",
    "return torch.nested.nested_tensor_from_jagged(x, offsets=torch.tensor([0, 1, 4])).sin()",
    "return torch.nested.as_nested_tensor([x, x[:2]], layout=torch.jagged) * 3",
]


@pytest.mark.slow
def test_the_process_lives_and_the_program_is_right() -> None:
    programs = [*((text, True) for text in STORAGES), *((text, False) for text in JAGGED)]
    text = HARNESS.format(programs=programs)
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", text],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
