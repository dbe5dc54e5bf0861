"""Fences: a transform tags a call, and no region has calls from both sides of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
from tj_core.compile.transforms import Transform
from tj_core.edit.editor import TraceEditor
from tj_core.host.session import Session
from tj_core.ir.stage import Stage
from tj_core.ir.tags import FENCE
from tj_core.ir.trace import PassRecord, Trace
from tj_core.testing.fusing import LoopPlugin
from tj_core.testing.numeric import NumericPlugin

if TYPE_CHECKING:
    from tj_core.compile.context import PassContext

pytestmark = pytest.mark.usefixtures("own_project")

X = [1.0, -2.0, 4.0]


def fenced(symbol: str) -> Transform:
    """A transform that makes fences of the calls of ``symbol``."""

    def apply(trace: Trace, context: PassContext) -> Trace:
        editor = TraceEditor(trace, context.tags)
        for call in trace.calls:
            found = call.symbol.qualname == symbol
            editor.append(call.replace(tags=call.tags.add(FENCE)) if found else call)
        return editor.done(PassRecord(context.name, context.plugin))

    return Transform("fenced", apply, Stage.ACQUIRED)


def regions(f: Any, *symbols: str) -> tuple[list[str], Any]:
    """The calls of the claimed program of ``f``, with those inside of regions; its records."""
    session = Session([LoopPlugin(), NumericPlugin()], overrides={"check": 2, "strict": True})
    g = tj.jit(f, session=session, transforms=[fenced(s) for s in symbols])
    g(X)
    calls = tj.last_trace(g).calls
    shown = [
        f"loop({', '.join(i.symbol.path for i in c.body.calls)})"
        if c.symbol.namespace == "loop" and c.body
        else c.symbol.path
        for c in calls
    ]
    return shown, tj.explain(g)


def around(x: Any) -> Any:
    """Sums and products on both sides of ``noise``, which nothing depends on."""
    y = -(x + x)
    noise = x.noise()
    z = -(x * x)
    return y, noise, z


def test_a_call_between_others_is_no_fence_by_itself() -> None:
    assert sorted(regions(around)[0]) == ["loop(add, neg, mul, neg)", "noise"]


def test_regions_stop_at_a_fence() -> None:
    found, _ = regions(around, "num.noise")
    assert found == ["loop(add, neg)", "noise", "loop(mul, neg)"]


def test_a_fence_stands_in_no_region_itself() -> None:
    def f(x: Any) -> Any:
        y = (x + x) + x
        return (-y) * (y * y)

    found, explained = regions(f, "num.neg")
    assert found == ["loop(add, add)", "neg", "loop(mul, mul)"]
    (fence,) = (r for r in explained.claims if r.symbol.qualname == "num.neg")
    assert fence.executor == "python"
    assert ("loop", "it stands in no region: it is a fence") in fence.declined
