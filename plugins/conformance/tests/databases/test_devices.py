"""Programs on another device than the CPU: on ``meta``, whose tensors have metadata alone.

What a transform or a rule makes on the CPU by mistake meets a tensor on another device, and raises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.databases.op_db import full_name, operations, sample_arguments
from tj_conformance.models import MODELS
from tj_conformance.sampling import FULL
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.sampled(4)

MODELS_WITHOUT_VALUES = ("bert", "vit", "mamba")
"""The others ask for values, or fake tensors make the cache that they begin with on the CPU."""

EVERY, SAMPLES = (1, 3) if FULL else (24, 2)


def moved(value: Any) -> Any:
    """A tensor's metadata on ``meta``, and the name of that device for another's."""
    if value == "cpu" if isinstance(value, str) else isinstance(value, torch.device):
        return torch.device("meta")
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return made.requires_grad_(value.requires_grad)


def metadata(tree: Any) -> list[Any]:
    return [
        (x.dtype, x.shape, x.stride(), x.device, x.requires_grad)
        if isinstance(x, torch.Tensor)
        else x
        for x in pytree.tree_leaves(tree)
    ]


def leaves(tree: Any) -> list[torch.Tensor]:
    found = (x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor))
    return [x for x in found if x.requires_grad]


def ran(f: Callable[..., Any], args: Any, kwargs: Any) -> tuple[list[Any], list[Any]]:
    """Metadata of what ``f`` returns, and of the gradients of its arguments."""
    args, kwargs = pytree.tree_map(moved, (args, kwargs))
    out = f(*args, **kwargs)
    inputs, outputs = leaves((args, kwargs)), leaves(out)
    if not inputs or not outputs:
        return metadata(out), []
    tangents = [torch.empty_like(x) for x in outputs]
    found = torch.autograd.grad(outputs, inputs, tangents, allow_unused=True)
    return metadata(out), metadata(found)


@pytest.mark.parametrize("op", operations()[::EVERY], ids=full_name)
def test_an_operation(op: Any) -> None:
    session = tj.Session(("autograd", "torch"), overrides={"strict": False, "check": 1})
    compared = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args, kwargs in sample_arguments(op, torch.float32, SAMPLES, op.supports_autograd):
            torch.compiler.reset()
            try:
                expected = ran(op.op, args, kwargs)
            except Exception:
                continue
            jitted = tj.jit(lambda *a, **k: op.op(*a, **k), session=session)
            assert ran(jitted, args, kwargs) == expected
            compared += 1
    if not compared:
        pytest.skip("eager does not run it on this device")


@pytest.mark.parametrize("name", MODELS_WITHOUT_VALUES if FULL else MODELS_WITHOUT_VALUES[:1])
def test_a_training_step(name: str) -> None:
    model = MODELS[name].build().train().to("meta")
    batch = pytree.tree_map(moved, dict(MODELS[name].batch()))
    session = tj.Session(("autograd", "torch"))

    def step(f: Callable[..., Any]) -> list[Any]:
        model.zero_grad()
        out = f(**batch)
        out.loss.backward()
        return metadata([out.loss, out.logits, *(p.grad for p in model.parameters())])

    expected = step(model)  # transformers installs its hooks in the first call
    jitted = tj.jit(model, session=session)
    assert step(jitted) == expected
    assert tj.stats(jitted).fallbacks == ()
