"""Tags of users on values and calls, at top level and in bodies, in the last traces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import (
    BoundSymbol,
    Proxy,
    Stage,
    Tag,
    TagSet,
    Trace,
    Transform,
    hookimpl,
    map_tree,
)
from torch.nn import functional as F


def plugin(**policy: Any) -> Any:
    """A plugin with a tag MINE that travels as ``policy`` says."""

    class Plugin:
        TJ_PLUGIN_API = 1

        @staticmethod
        @hookimpl
        def tj_tags(options: Any) -> Any:
            return (Tag("MINE", **policy),)

    return Plugin


def in_bodies(trace: Trace, context: Any) -> Trace:
    """Every call in a body, and every value that it makes, tagged."""

    def decomposed(call: BoundSymbol) -> BoundSymbol:
        if call.body is None:
            return call
        made = {p.name for c in call.body.calls for p in c.flat_outs}

        def mark(p: Proxy) -> Proxy:
            return p.replace(tags=p.tags.add("MINE")) if p.name in made else p

        calls = (c.replace(tags=c.tags.add("MINE")).map_proxies(mark) for c in call.body.calls)
        outputs = map_tree(mark, call.body.outputs, Proxy)
        return call.replace(body=replace(call.body, calls=tuple(calls), outputs=outputs))

    return trace.replace(calls=tuple(map(decomposed, trace.calls)))


def trained(f: Any, *, transforms: Any = (), **policy: Any) -> Any:
    session = tj.Session(["torch", "autograd", plugin(**policy)])
    jitted = tj.jit(f, session=session, transforms=transforms)
    grads = []
    for fn in (jitted, f):
        x = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
        fn(x).backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
    return jitted


def values(trace: Trace) -> dict[str, TagSet]:
    made = [p for c in trace.calls for p in c.flat_outs]
    return {p.name: p.tags for p in (*trace.inputs, *made)}


def program(x: torch.Tensor) -> torch.Tensor:
    y = tj.tag(F.layer_norm(x, (3,)), "MINE")
    return (y.exp() * x).sum()


def test_a_values_tag_is_on_it_in_both_last_traces() -> None:
    jitted = trained(program)
    forward, backward = values(tj.last_trace(jitted)), values(tj.last_trace(jitted, "backward"))
    assert [n for n, tags in forward.items() if "MINE" in tags] == ["y"]
    assert "MINE" in backward.get("y", TagSet(["MINE"]))
    assert not [n for n, tags in backward.items() if "MINE" in tags and n.startswith("grad")]


def test_the_tags_of_calls_in_bodies_stay() -> None:
    """Also where the call is replaced by one that returns more, and that by its body."""
    mark = Transform("mark", in_bodies, after=Stage.ACQUIRED)
    jitted = trained(lambda x: (F.layer_norm(x, (3,)) * x).sin().sum(), transforms=[mark])
    forward, backward = tj.last_trace(jitted), tj.last_trace(jitted, "backward")
    norm = next(c for c in forward.calls if c.symbol.name == "native_layer_norm.default")
    assert "MINE" in norm.tags
    assert "MINE" in norm.flat_outs[0].tags
    whole = [c for c in forward.calls if c.body is not None]
    assert whole
    assert all("MINE" in inner.tags for c in whole for inner in c.body.calls)
    own = [c for c in backward.calls if c.symbol.name.endswith("_backward.default")]
    assert own
    assert all("MINE" not in c.tags for c in own)


@pytest.mark.parametrize("travels", [False, True])
def test_a_call_that_runs_again_is_the_users_call(travels: bool) -> None:
    """A recomputed call keeps its tags; calls of gradients follow the tag's policy."""

    def mark(trace: Trace, context: Any) -> Trace:
        calls = (c.replace(tags=c.tags.add("MINE")) for c in trace.calls)
        return trace.replace(calls=tuple(calls))

    jitted = trained(
        lambda x: x.sin().exp().cos().tanh().sum(),
        transforms=[Transform("mark", mark, after=Stage.ACQUIRED)],
        to_backward=travels,
    )
    backward = tj.last_trace(jitted, "backward", stage="SPLIT")
    again = [c for c in backward.calls if c.symbol.variant != "backward"]
    gradients = [c for c in backward.calls if c.symbol.variant == "backward"]
    assert again
    assert all("MINE" in c.tags for c in again)
    assert gradients
    assert all(("MINE" in c.tags) is travels for c in gradients)
