"""User's transforms on PyTorch programs, and tags, which survive them."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import (
    CallEditor,
    Claim,
    Constant,
    Executor,
    Replacement,
    RewriteRule,
    RuleTable,
    Stage,
    Tag,
    Transform,
    hookimpl,
)
from tj_core.ir.tags import TagSet

BFLOAT16 = Constant("torch.bfloat16", torch.bfloat16)
X = torch.linspace(-2, 2, 8).reshape(2, 4)


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def transform(name: str, **rules: Any) -> Transform:
    """Transform that applies ``rules``, by symbol with ``__`` for the dots."""
    table: RuleTable[RewriteRule] = RuleTable(name)
    for symbol, rule in rules.items():
        table.set(symbol.replace("__", "."), rule)
    return Transform(name, lambda trace, context: context.rewrite(trace, table), Stage.ACQUIRED)


def to(symbol: str) -> RewriteRule:
    """Rule that replaces a call by ``symbol`` of its first argument."""

    def rule(call: Any, editor: CallEditor) -> Replacement:
        new = editor.call(symbol, call.args[0], outputs=tuple(p.name for p in call.flat_outs))
        return Replacement((new,))

    return rule


SILU = transform("gelu_to_silu", torch__nn__functional__gelu=to("torch.nn.functional.silu"))


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = F.gelu(x @ w)
    return (h + x).softmax(-1)


def names(f: Any) -> list[str]:
    return [call.symbol.qualname for call in tj.last_trace(f).calls]


# --------------------------------------------------------------------------- rewriting


def test_one_function_replaced_by_another() -> None:
    w = torch.randn(4, 4)
    g = tj.jit(program, transforms=[SILU])
    same(g(X, w), (F.silu(X @ w) + X).softmax(-1))
    assert "torch.nn.functional.silu" in names(g)
    assert "torch.nn.functional.gelu" not in names(g)
    before = tj.last_trace(g, stage="ACQUIRED")
    new = next(c for c in tj.last_trace(g).calls if c.symbol.name.endswith("silu"))
    old = next(c for c in tj.last_traces(g)[0].calls if c.symbol.name.endswith("gelu"))
    assert (new.source, new.parent, new.label) == (old.source, old.label, old.label)
    assert any(r.name == "gelu_to_silu" for r in before.history)


def test_gradients_of_a_rewritten_program() -> None:
    w = torch.randn(4, 4, requires_grad=True)
    g = tj.jit(program, transforms=[SILU])
    expected = torch.autograd.grad((F.silu(X @ w) + X).softmax(-1).square().sum(), w)
    same(torch.autograd.grad(g(X, w).square().sum(), w), expected)


def test_a_changed_dtype_is_followed_through_the_program() -> None:
    def narrow(call: Any, editor: CallEditor) -> Replacement:
        wide = editor.call(call.symbol, *call.args)
        cast = editor.call("torch.Tensor.to", wide.outputs, BFLOAT16, outputs=(call.outputs.name,))
        return Replacement((wide, cast))

    g = tj.jit(program, transforms=[transform("narrow", torch__matmul=narrow)])
    w = torch.randn(4, 4)
    same(g(X, w), (F.gelu((X @ w).to(torch.bfloat16)) + X).softmax(-1))
    by_name = {c.symbol.qualname: c for c in tj.last_trace(g).calls}
    gelu = by_name["torch.nn.functional.gelu"]
    assert gelu.outputs.dtype.name == "bfloat16"
    assert gelu.body.calls[0].flat_args[0].dtype.name == "bfloat16"
    assert tj.last_trace(g).outputs[0].dtype.name == "float32"  # bfloat16 + float32


def test_editing_inside_bodies() -> None:
    edit = transform("exact", aten__gelu__default=to("aten.relu.default"))
    g = tj.jit(program, transforms=[edit])
    w = torch.randn(4, 4)
    same(g(X, w), (F.relu(X @ w) + X).softmax(-1))
    edited = [c for t in tj.last_traces(g) for c in t.calls if c.symbol.edited]
    assert edited
    assert "aten.relu.default" in names(g)  # nobody knows the edited call, so its body runs


def test_removing_a_call() -> None:
    def drop(call: Any, editor: CallEditor) -> Replacement:
        return Replacement((), {call.outputs.name: call.args[0]})

    g = tj.jit(
        lambda x: F.dropout(x, 0.5) * 2,
        transforms=[transform("no_dropout", torch__nn__functional__dropout=drop)],
    )
    same(g(X), X * 2)
    assert names(g) == ["torch.mul"]


def test_inlining_every_body() -> None:
    def open_up(call: Any, editor: CallEditor) -> Replacement | None:
        return editor.inline() if editor.can_inline() else None

    table: RuleTable[RewriteRule] = RuleTable("open")
    table.set("torch.*", open_up)
    opened = Transform("open", lambda t, c: c.rewrite(t, table), Stage.ACQUIRED)
    g = tj.jit(program, transforms=[opened])
    w = torch.randn(4, 4)
    same(g(X, w), program(X, w))
    assert all(name.startswith("aten.") for name in names(g))


# --------------------------------------------------------------------------- tags


class Marks:
    """Plugin with two tags: `SEEN` propagates through views, `HERE` does not propagate."""

    tj_name = "marks"

    @hookimpl
    def tj_tags(self) -> tuple[Tag, ...]:
        return (
            Tag("SEEN", "travels everywhere", through_views=True),
            Tag("HERE", "stays", into_body=False, to_replacement=False),
        )


def session() -> tj.Session:
    return tj.Session(plugins=[Marks(), "..."], overrides={"check": 2})


def tagged(f: Any, *args: Any, **kwargs: Any) -> dict[str, list[str]]:
    """Tags of every value in the last trace of ``tj.jit(f)``."""
    g = tj.jit(f, session=session(), **kwargs)
    got = g(*args)
    if not kwargs:
        same(got, f(*args))
    trace = tj.last_trace(g)
    values = [*trace.inputs, *(p for c in trace.calls for p in c.flat_outs)]
    return {p.name: list(p.tags) for p in values if p.tags}


def test_a_tag_on_a_value() -> None:
    def f(x):
        y = tj.tag(x * 2, "SAVE")
        return y + 1

    assert tagged(f, X) == {"y": ["SAVE"]}
    assert tagged(f, X.clone().requires_grad_()) == {"y": ["SAVE"]}


def test_a_tag_on_an_input_and_two_on_one_value() -> None:
    def f(x):
        tj.tag(x, "SEEN")
        y = tj.tag(tj.tag(x.sin(), "SAVE"), "HERE")
        return y * 2

    assert tagged(f, X) == {"x": ["SEEN"], "y": ["HERE", "SAVE"]}


def test_a_tag_on_one_of_many_outputs() -> None:
    def f(x):
        values, indices = x.max(0)
        tj.tag(values, "SEEN")
        return values, indices

    found = tagged(f, X)
    assert list(found.values()) == [["SEEN"]]
    assert "values" in next(iter(found))


def test_views_inherit_what_travels_through_views() -> None:
    def f(x):
        y = tj.tag(tj.tag(x * 2, "SEEN"), "HERE")
        return y.t().reshape(-1)[1:] + 1

    found = tagged(f, X)
    assert ["HERE", "SEEN"] in found.values()
    assert list(found.values()).count(["SEEN"]) >= 1
    assert all("HERE" not in tags or "SEEN" in tags for tags in found.values())


def test_outside_of_programs_a_tag_does_nothing() -> None:
    assert tj.tag(X, "NO SUCH TAG") is X


def test_conflicting_tags_are_an_error_at_the_users_line() -> None:
    def f(x):
        return tj.tag(tj.tag(x * 2, "SAVE"), "RECOMPUTE")

    with pytest.raises(tj.TjError, match="exclude each other") as raised:
        tj.jit(f)(X)
    assert f"{__file__}:" in str(raised.value)


def gelu_program(x):
    h = tj.tag(F.gelu(x), "SEEN")
    return h * 2


def test_tags_survive_a_replacement() -> None:
    assert tagged(gelu_program, X, transforms=[SILU]) == tagged(gelu_program, X)
    assert list(tagged(gelu_program, X).values()) == [["SEEN"]]


def test_a_tag_that_does_not_travel_to_replacements_is_gone() -> None:
    def f(x):
        return tj.tag(F.gelu(x), "HERE") * 2

    assert tagged(f, X) == {"gelu": ["HERE"]}
    assert tagged(f, X, transforms=[SILU]) == {}


def test_tags_survive_dead_code_elimination_and_claiming() -> None:
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("torch.nn.functional.gelu", Claim(F.gelu))

    def f(x):
        x.cos()  # dead
        return gelu_program(x)

    found = tagged(f, X, executors=[Executor("mine", claims)])
    assert list(found.values()) == [["SEEN"]]


def test_tags_survive_descending_into_bodies() -> None:
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("aten.mm.default", Claim(torch.mm))

    def f(x, w):
        return tj.tag(x @ w, "SEEN") * 2

    found = tagged(f, X, torch.randn(4, 2), executors=[Executor("mine", claims)])
    assert list(found.values()) == [["SEEN"]]


def test_tags_survive_a_change_of_dtype_upstream() -> None:
    def narrow(call: Any, editor: CallEditor) -> Replacement:
        cast = editor.call("torch.Tensor.to", call.args[0], BFLOAT16)
        new = editor.call(call.symbol, cast.outputs, outputs=(call.outputs.name,))
        return Replacement((cast, new))

    def f(x):
        y = tj.tag(x.sin(), "SEEN")
        return tj.tag(y * 2, "SAVE") + 1

    found = tagged(f, X, transforms=[transform("narrow", torch__sin=narrow)])
    assert found == {"y": ["SEEN"], "mul": ["SAVE"]}


def test_tags_of_calls_reach_their_bodies_and_replacements() -> None:
    def mark(trace: Any, context: Any) -> Any:
        calls = tuple(
            c.replace(tags=TagSet(["SEEN", "HERE"])) if c.symbol.name == "matmul" else c
            for c in trace.calls
        )
        return trace.replace(calls=calls)

    marking = Transform("mark", mark, Stage.ACQUIRED, priority=9)
    opened: RuleTable[RewriteRule] = RuleTable("open")
    opened.set("torch.matmul", lambda call, editor: editor.inline())
    opening = Transform("open", lambda t, c: c.rewrite(t, opened), Stage.ACQUIRED)
    g = tj.jit(lambda x, w: (x @ w).sin(), session=session(), transforms=[opening, marking])
    w = torch.randn(4, 2)
    same(g(X, w), (X @ w).sin())
    by_name = {c.symbol.qualname: list(c.tags) for c in tj.last_trace(g).calls}
    assert by_name == {"aten.mm.default": ["SEEN"], "torch.sin": []}


def test_tags_are_seen_by_rules_at_trace_time() -> None:
    seen = []

    def look(call: Any, editor: CallEditor) -> None:
        seen.append(list(call.flat_args[0].tags))

    looking = transform("look", torch__nn__functional__gelu=look)
    tagged(lambda x: F.gelu(tj.tag(x * 2, "SEEN")), X, transforms=[looking])
    assert seen == [["SEEN"]]
