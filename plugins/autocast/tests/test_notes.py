"""Notes that captures make of autocast."""

from __future__ import annotations

import pytest
import torch
from tj_autocast.notes import CAST_CACHE, LEAF, LeafNotes
from tj_core.extend import Body, BoundSymbol, CaptureError, Context, Symbol, TensorProxy
from tj_torch.capture.autocast_notes import Casts
from tj_torch.ops.context.cast_cache import CastCache

W = TensorProxy("w", shape=(2,), strides=(1,), requires_grad=True)
UNDER = Context((("autocast.cpu", "bfloat16"), ("grad", True)))


def casts() -> Casts:
    found = Casts(LeafNotes())
    found.input(W, torch.ones(2, requires_grad=True))
    return found


def using(body: Body | None) -> BoundSymbol:
    out = TensorProxy("y", shape=(2,), strides=(1,), requires_grad=True)
    return BoundSymbol(Symbol("acme", "f"), (W,), outputs=out, body=body, context=UNDER)


KNOWN = Body((W.replace(name="a0"),), (), W.replace(name="a0"))
CACHE = CastCache().entered(True)


@pytest.mark.parametrize(("first", "second"), [(None, KNOWN), (KNOWN, None), (None, None)])
def test_a_leaf_that_others_may_cast_is_not_shared(first: Body | None, second: Body | None) -> None:
    noted = casts()
    noted.call(using(first), CACHE)
    with pytest.raises(CaptureError, match="may share casts"):
        noted.call(using(second), CACHE)


def test_stretches_share_nothing() -> None:
    noted = casts()
    noted.call(using(None), CACHE)
    noted.call(using(None), CACHE.cleared())
    noted.call(using(KNOWN), CastCache().entered(False))


def test_what_is_tagged() -> None:
    assert casts().call(using(KNOWN), CACHE).tags[CAST_CACHE.name] == CACHE.key
    parameter = torch.nn.Parameter(torch.ones(2))
    assert casts().input(W, parameter).tags[LEAF.name] is None
    assert casts().input(W, parameter * 1).tags[LEAF.name] is False
