"""Autocast without a plugin for notes on kept casts, and PyTorch's cache of casts."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import (
    BoundSymbol,
    CaptureError,
    Context,
    Effects,
    RuleTable,
    Symbol,
    TensorProxy,
    Trace,
)
from tj_torch.capture.autocast_notes import NOTES, Casts, check_of, rules
from tj_torch.ops.context.cast_cache import CastCache
from tj_torch.ops.context.tracker import ContextTracker

W = TensorProxy("w", shape=(2,), strides=(1,), requires_grad=True)
UNDER = Context((("autocast.cpu", "bfloat16"), ("grad", True)))
CACHE = CastCache().entered(True)
TABLES: dict[str, RuleTable[Any]] = {NOTES: rules()}


def casts(cache: CastCache = CACHE) -> Casts:
    """Notes on a program around which autocast keeps casts in ``cache``, given a parameter."""
    empty = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    found = Casts.of(empty, ContextTracker(Context(()), cache), TABLES)
    assert found.input(W, torch.nn.Parameter(torch.ones(2))) is W
    return found


def calling(name: str, *mutated: int) -> BoundSymbol:
    call = BoundSymbol(Symbol("torch", name), (W, 2), outputs=W.replace(name="y"), context=UNDER)
    return call.replace(effects=Effects(mutates=mutated))


def test_nothing_is_tagged() -> None:
    call = calling("mul")
    assert casts().call(call, CACHE) is call
    language = tj.Session(["torch"]).language
    assert check_of(TABLES, Trace((W,), (), (), language=language)) is None


def test_a_leaf_is_not_written() -> None:
    with pytest.raises(CaptureError, match="may keep a cast"):
        casts().call(calling("Tensor.mul_", 0), CACHE)


def test_a_leaf_is_written_where_no_cast_is_kept() -> None:
    call = calling("Tensor.mul_", 0)
    assert casts(CastCache()).call(call, CACHE) is call
    assert casts().call(call, CastCache().entered(False)) is call


@pytest.mark.parametrize(
    ("cache", "key"),
    [
        (CastCache(), None),
        (CastCache().entered(False), None),
        (CastCache().entered(True), 1),
        (CastCache().entered(True).entered(False).entered(None), None),
        (CastCache().entered(True).entered(True).cleared(), 2),
    ],
)
def test_where_casts_are_kept(cache: CastCache, key: int | None) -> None:
    assert cache.key == key
