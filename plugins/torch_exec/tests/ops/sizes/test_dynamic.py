"""Sizes that are symbols: entries as torch.compile's, guards, bodies that run, memo, programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import (
    Claim,
    Executor,
    Replacement,
    RuleTable,
    Session,
    Stage,
    Transform,
    generate,
    hookimpl,
)
from tj_core.ir.proxy import SymDim, TensorProxy
from tj_core.ir.trace import Trace

pytestmark = pytest.mark.sampled(16)

Sequence = list[tuple[Any, ...]]


def rows(*counts: int) -> Sequence:
    return [(torch.rand(n, 3),) for n in counts]


def ints(*values: list[int]) -> Sequence:
    return [(torch.tensor(v),) for v in values]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same(mine: Any, theirs: Any) -> None:
    torch.testing.assert_close(mine, theirs, equal_nan=True)


def copies(args: tuple[Any, ...]) -> list[Any]:
    return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]


# ---------------------------------------------------------------------------- entries


def flat(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1) * 2


def branch(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 4 else x.chunk(2)[0] - 1


def arithmetic(x: torch.Tensor) -> Any:
    a, b = x.shape
    rest = x[: a - 1].reshape(b, -1)
    return rest, torch.zeros(a * 2, b), x.reshape(a * b // 3, 3), a * b + 1, x.sum() / a


def strided(x: torch.Tensor) -> torch.Tensor:
    return x.t().reshape(-1) + x.stride(0)


def scaled(x: torch.Tensor, n: float) -> Any:
    return x * n, n + 1


def normed(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:]).softmax(0) @ x.t()


def grown(x: torch.Tensor) -> torch.Tensor:
    out = torch.cat([x, x.new_ones(x.shape[0], 3)])
    out[1:].add_(1)
    return out.unfold(0, 2, 1).mean(-1)


ENTRIES: list[tuple[Callable[..., Any], Sequence]] = [
    (flat, rows(4, 5, 6, 7)),
    (flat, rows(4, 1, 0, 7, 1, 2)),
    (branch, rows(4, 5, 6, 7, 3, 2)),
    (branch, rows(6, 9, 3, 5)),
    (arithmetic, rows(6, 9, 3, 6, 12)),
    (strided, [(torch.rand(3, n).t(),) for n in (4, 5, 6)]),
    (strided, [(torch.rand(n, 8)[:, ::2],) for n in (4, 5, 6)]),
    (scaled, [(torch.rand(2), n) for n in (3, 4, 5, 1, 0)]),
    (scaled, [(torch.rand(2), n) for n in (3.0, 4.0, 5.0)]),
    (normed, [(torch.rand(n, m),) for n, m in ((4, 3), (5, 4), (6, 7))]),
    (grown, rows(4, 5, 6)),
]


def entries(fn: Callable[..., Any], calls: Sequence, dynamic: bool | None, mark: Any) -> Any:
    """Entries after each call: tj's, and those of torch.compile."""
    compiled = 0

    def backend(graph: torch.fx.GraphModule, examples: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    reference = torch.compile(fn, backend=backend, dynamic=dynamic)
    jitted = tj.jit(fn, plugins=["torch"], dynamic=dynamic)
    found = []
    for args in calls:
        mine, theirs = copies(args), copies(args)
        mark(mine[0])
        mark(theirs[0])
        same(jitted(*mine), fn(*copies(args)))
        reference(*theirs)
        found.append((tj.stats(jitted).misses, compiled))
    assert not tj.stats(jitted).fallbacks
    return found


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize(("fn", "calls"), ENTRIES)
def test_as_many_entries_as_torch_compile(
    fn: Callable[..., Any], calls: Sequence, dynamic: bool | None
) -> None:
    found = entries(fn, calls, dynamic, lambda x: None)
    assert [mine for mine, _ in found] == [theirs for _, theirs in found]


MARKS = {
    "dynamic": lambda x: torch._dynamo.mark_dynamic(x, 0),
    "bounded": lambda x: torch._dynamo.mark_dynamic(x, 0, min=2, max=64),
    "maybe": lambda x: torch._dynamo.maybe_mark_dynamic(x, 0),
    "static": lambda x: torch._dynamo.mark_static(x, 0),
    "unbacked": lambda x: torch._dynamo.decorators.mark_unbacked(x, 0),
}


@pytest.mark.parametrize("mark", MARKS)
def test_marks(mark: str) -> None:
    sizes = (4, 5, 1, 0, 7) if mark == "unbacked" else (4, 5, 6, 7)
    found = entries(flat, rows(*sizes), None, MARKS[mark])
    assert [mine for mine, _ in found] == [theirs for _, theirs in found]
    assert found[-1][0] == (len(sizes) if mark == "static" else 1)


def fives(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1) if x.shape[0] == 5 else x


def test_a_violated_mark_raises_as_torch_compile_does() -> None:
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    for compiled in (tj.jit(fives, plugins=["torch"]), torch.compile(fives, backend="eager")):
        x = torch.rand(5, 3)
        torch._dynamo.mark_dynamic(x, 0)
        with pytest.raises(ConstraintViolationError, match="marked L"):
            compiled(x)


# ---------------------------------------------------------------------------- traces and guards


def traces_of(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, list[Trace]]:
    jitted = tj.jit(fn, **{"plugins": ["torch"], "dynamic": True, **options})
    same(jitted(*copies(args)), fn(*copies(args)))
    return jitted, list(tj.last_traces(jitted))


def test_sizes_print_as_symbols_and_bodies_compute_them() -> None:
    _, traces = traces_of(branch, torch.rand(3, 4))
    text = traces[0].python(sources=False)
    assert 'x: "cpu f32[s77, s27] strides=(s27, 1)"' in text
    assert '_1 = operator.add(_0, 1)  # _1: "int s77 + 1"' in text
    assert "aten.split.Tensor(x, _2)" in text
    assert not [c for c in traces[0].calls if c.effects.ordered or c.body is None]


@pytest.mark.parametrize("fn", [flat, branch, arithmetic, normed, grown])
def test_text_reads_back_and_runs_at_other_sizes(fn: Callable[..., Any]) -> None:
    jitted, traces = traces_of(fn, torch.rand(6, 3))
    language = Session(plugins=["torch"]).language
    for trace in traces:
        again = Trace.parse(str(trace), language=language, constants=trace.constants())
        assert again == trace
        inputs = {p.name: p for p in trace.inputs}
        other = torch.rand(9, 3)
        values = [other if n == "x" else other.shape["01".index(n[-1])] for n in inputs]
        same(jitted(other), fn(other))
        same(generate(again).function(*values), generate(traces[0]).function(*values))


def test_hints_and_guards_of_sizes() -> None:
    seen: list[SymDim] = []

    def look(trace: Trace, context: Any) -> Trace:
        seen.append(trace.calls[0].flat_outs[0].shape[0])
        return trace

    transform = Transform("look", look, after=Stage.ACQUIRED)
    jitted, _ = traces_of(flat, torch.rand(4, 3), transforms=[transform])
    assert (str(seen[0]), seen[0].hint) == ("s27*s77", 12)
    with pytest.raises(tj.TjError, match="no program to guard"):
        seen[0].guard(12)  # the guards are built

    def fix(trace: Trace, context: Any) -> Trace:
        (dim, *_) = trace.calls[0].flat_args[0].shape
        dim.guard(dim.hint)
        return trace

    transform = Transform("fix", fix, after=Stage.ACQUIRED)
    jitted, _ = traces_of(flat, torch.rand(4, 3), transforms=[transform])
    assert any("size=[4, None]" in g.text for g in tj.guards(jitted))
    jitted(torch.rand(5, 3))
    assert tj.stats(jitted).entries == 2


def size_guards(jitted: Any) -> set[str]:
    return {g.text for g in tj.guards(jitted) if ".size()" in g.text or ".stride()" in g.text}


def test_size_guards_are_listed() -> None:
    jitted, _ = traces_of(branch, torch.rand(6, 3))
    assert {"5 <= L['x'].size()[0]", "2 <= L['x'].size()[1]"} <= size_guards(jitted)


# ---------------------------------------------------------------------------- memo


@pytest.mark.parametrize("fn", [flat, branch, arithmetic, strided, normed, grown])
def test_memo_changes_neither_traces_nor_guards(fn: Callable[..., Any]) -> None:
    session = Session(plugins=["torch"])
    found = []
    for rows_ in (6, 9, 3):
        shape = (rows_, 3)
        on = tj.jit(lambda x: fn(x), session=session, dynamic=True)
        off = tj.jit(lambda x: fn(x), plugins=["torch"], memo=False, dynamic=True)
        for jitted in (on, off):
            x = torch.rand(shape)
            same(jitted(x), fn(x))
        assert tj.last_traces(on)[0] == tj.last_traces(off)[0]
        assert size_guards(on) == size_guards(off)
        assert tj.stats(off).memo_hits == 0
        found.append(tj.stats(on).memo_misses)
    assert found[1] == 0 or fn in (branch,)


def first(x: torch.Tensor) -> torch.Tensor:
    return (x.view(-1) * 2).view(x.shape[0], -1)


def test_captures_share_expansions_under_other_names() -> None:
    session = Session(plugins=["torch"])
    jitted = tj.jit(first, session=session, dynamic=True)
    jitted(torch.rand(4, 3))
    made = tj.stats(jitted).memo_misses

    def second(some_longer_name: torch.Tensor) -> torch.Tensor:
        return first(some_longer_name)

    other = tj.jit(second, session=session, dynamic=True)
    x = torch.rand(7, 5)
    same(other(x), second(x))
    assert made
    assert tj.stats(other).memo_misses == 0
    names = {str(d) for p in tj.last_trace(other).inputs for d in getattr(p, "shape", ())}
    assert not names & {"s77", "s27"}, "the test is of no use if symbols have equal names"


# ---------------------------------------------------------------------------- executors, rewriting


class Adds:
    """An executor of one ATen operator."""

    tj_name = "adds"

    def __init__(self, operator: str, implementation: Callable[..., Any]) -> None:
        self.claims = RuleTable("claim")
        self.claims.set(operator, Claim(implementation, None))

    @hookimpl
    def tj_executors(self) -> Any:
        return (Executor("adds", self.claims),)


def composite(x: torch.Tensor) -> Any:
    flat = x.flatten(1)
    normed = F.rms_norm(x, x.shape[-1:])
    return torch.hsplit(x, 2)[1] * 2, normed, F.cross_entropy(flat, flat.softmax(-1))


@pytest.mark.parametrize(
    "operator", ["aten.add.Scalar", "aten.slice.Tensor", "aten.div.Scalar", "aten.view.default"]
)
def test_executors_claim_inside_bodies_with_symbolic_sizes(operator: str) -> None:
    ran = []

    def implementation(*args: Any, **kwargs: Any) -> Any:
        ran.append(operator)
        overload = getattr(getattr(torch.ops.aten, operator.split(".")[1]), operator.split(".")[2])
        return overload(*args, **kwargs)

    plugin = Adds(operator, implementation)
    jitted = tj.jit(composite, plugins=[plugin, "torch"], dynamic=True)
    for n in (4, 6, 8):
        x = torch.rand(2, 8, n, 5)
        same(jitted(x), composite(x))
    # Up to 2.12, cross_entropy of probabilities decides on the number of classes: one for each n.
    assert tj.stats(jitted).misses == (1 if torch.__version__ >= (2, 13) else 3)
    assert len(ran) >= 3


def test_rewriting_with_symbolic_sizes() -> None:
    rules: Any = RuleTable("twice")

    @rules.register("torch.mul")
    def twice(call: Any, edit: Any) -> Any:
        once = edit.call("torch.reshape", call.args[0], [-1, 1])
        full = edit.call("torch.cat", [once.outputs, once.outputs], 1, outputs=(call.outputs.name,))
        return Replacement((once, full))

    transform = Transform("twice", lambda t, c: c.rewrite(t, rules), after=Stage.ACQUIRED)
    jitted = tj.jit(flat_sum, plugins=["torch"], transforms=[transform], dynamic=True)
    for n in (4, 5):
        x = torch.rand(n, 3)
        same(jitted(x), torch.cat([x.view(-1, 1)] * 2, 1).sum(0))
    assert tj.stats(jitted).misses == 1
    text = tj.last_trace(jitted).python(sources=False, bodies=False)
    assert '"cpu f32[s27*s77, 2]"' in text


def flat_sum(x: torch.Tensor) -> torch.Tensor:
    return (x.view(-1) * 2).sum(0)


def unused(x: torch.Tensor) -> torch.Tensor:
    x.view(-1).exp().nonzero()
    x.sum().item()
    return x + 1


def test_dead_calls_on_symbols_go() -> None:
    _, traces = traces_of(unused, torch.rand(4, 3))
    names = {c.symbol.qualname for c in traces[-1].calls}
    assert not names & {"torch.exp", "torch.Tensor.view", "torch.nonzero"}
    assert "torch.add" in names


# ---------------------------------------------------------------------------- data-dependent sizes


def checked(x: torch.Tensor) -> Any:
    n = x.sum().item()
    torch._check(n >= 0)
    torch._check(n <= 4)
    return torch.arange(10)[:n], torch.ones(n, 3).view(-1)


def related(x: torch.Tensor, y: torch.Tensor) -> Any:
    n = x.sum().item()
    torch._check(n >= 0)
    torch._check(n < y.shape[0])
    return y.narrow(0, 0, n), y[:n] * 2, torch.cat([y[:n], y])


UNBACKED: dict[str, tuple[Callable[..., Any], Sequence]] = {
    "nonzero": (lambda x: x.nonzero() * 2, ints([0, 1, 2], [0, 0, 0], [1, 1, 1])),
    "twice": (lambda x: (x.nonzero() + 1, (x > 1).nonzero()), ints([0, 1, 2], [0, 0, 0])),
    "mask": (lambda x: x[x > 0].sum() + x.masked_select(x > 1).numel(), ints([0, 1, 2], [0] * 3)),
    "unique": (lambda x: x.unique(return_counts=True), ints([0, 1, 2], [0, 0, 0], [2, 0, 2])),
    "where": (lambda x: torch.where(x > 0), ints([0, 1, 2], [0, 0, 0])),
    "item": (lambda x: x.sum().item() + 1, ints([0, 1, 2], [0, 0, 0])),
    "truth": (lambda x: (x.sum() > 0).item(), ints([0, 1, 2], [0, 0, 0])),
    "factory": (lambda x: torch.zeros(x.sum().item()) + 1, ints([0, 1, 2], [0, 0, 0])),
    "tolist": (lambda x: [v + 1 for v in x.tolist()], ints([0, 1, 2], [0, 0, 0])),
    "checked": (checked, ints([0, 1, 2], [0, 0, 0])),
    "related": (related, [(torch.tensor([k, 1]), torch.rand(5, 3)) for k in (2, 0, -1)]),
}


@pytest.mark.parametrize("name", UNBACKED)
def test_sizes_that_depend_on_data(name: str) -> None:
    fn, calls = UNBACKED[name]
    jitted = tj.jit(fn, plugins=["torch"])
    for args in calls:
        same(jitted(*args), fn(*args))
    assert tj.stats(jitted).misses == 1
    assert not tj.stats(jitted).fallbacks
    trace = tj.last_traces(jitted)[0]
    assert [c for c in trace.calls if c.body is not None]
    assert any(text in str(trace) for text in ("[u", '"int u', '"bool Eq(u'))
    parsed = Trace.parse(str(trace), language=trace.language, constants=trace.constants())
    assert parsed == trace


def test_checks_survive() -> None:
    jitted = tj.jit(checked, plugins=["torch"])
    jitted(torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match="Expected cond to be True"):  # eager's own
        jitted(torch.tensor([4, 2]))
    assert any("_assert_scalar" in str(c.symbol) for c in tj.last_trace(jitted).calls)


def test_decisions_on_data_fall_back_once() -> None:
    def decides(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum().item() > 3 else x + 1

    jitted = tj.jit(decides, plugins=["torch"])
    with pytest.warns(tj.TjWarning, match="graph break"):
        same(jitted(torch.tensor([1, 2])), torch.tensor([2, 3]))
    same(jitted(torch.tensor([3, 2])), torch.tensor([6, 4]))


def test_symbols_that_calls_make_are_their_own() -> None:
    rules: Any = RuleTable("found")

    @rules.register("torch.mul")
    def found(call: Any, edit: Any) -> Any:
        calls = [edit.call("torch.nonzero", call.args[0]) for _ in range(2)]
        total = edit.call("torch.cat", [c.outputs for c in calls], outputs=(call.outputs.name,))
        return Replacement((*calls, total))

    transform = Transform("found", lambda t, c: c.rewrite(t, rules), after=Stage.ACQUIRED)
    jitted = tj.jit(lambda x: x * 2, plugins=["torch"], transforms=[transform])
    x = torch.tensor([0, 1, 2])
    same(jitted(x), torch.cat([x.nonzero()] * 2))
    one, two, both = (c.outputs.shape[0] for c in tj.last_trace(jitted).calls)
    assert one != two
    assert set(str(both).split(" + ")) == {str(one), str(two)}


@pytest.mark.slow
def test_a_number_that_capture_knows_is_one_inside_of_a_transform() -> None:
    def second_derivatives(x):
        return torch.func.hessian(lambda y: y.cumsum(0).sin())(x)

    f = tj.jit(second_derivatives, plugins=["torch"], dynamic=True, check=2, strict=True)
    for n in (4, 5, 7):
        x = torch.rand(n)
        same(f(x), second_derivatives(x))


# ---------------------------------------------------------------------------- the hook


def test_under_the_hook() -> None:
    compiled = torch.compile(branch, backend="tj", dynamic=True)
    for (x,) in rows(6, 7, 3):
        same(compiled(x), branch(x))
    jitted = tj.jit(branch, plugins=["torch"], dynamic=True, frontend="dynamo_hook")
    for (x,) in rows(6, 7, 3):
        same(jitted(x), branch(x))
    assert tj.stats(jitted).misses == 2


def test_a_stride_that_a_call_decides_on_is_a_number_in_the_calls_before() -> None:
    def write(b):
        b[..., 1:] = 4

    f = tj.jit(write, plugins=["torch"])
    for x in (torch.rand(2, 3)[..., ::2], torch.rand(2, 2)):
        expected = x.clone()
        write(expected)
        f(x)
        assert torch.equal(x, expected)
    (b,) = (p for p in tj.last_traces(f)[0].inputs if isinstance(p, TensorProxy))
    if torch.__version__ >= (2, 11):  # up to 2.10, PyTorch decides on no stride here
        assert b.strides == (2, 1)


def test_a_stride_that_a_later_pass_decides_on_is_one_in_all_traces() -> None:
    def write(a, b):
        b[..., ::2][0] = 5
        return a.view(-1)

    def pair(*, shared: bool) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.arange(6).reshape(2, 3)
        part = whole[..., :2]
        return (whole, part) if shared else (whole, part.clone())

    session = Session(["torch"], overrides={"torch": {"functional": "always"}, "check": 2})
    f = tj.jit(write, session=session)
    for shared in (True, False):
        given, expected = pair(shared=shared), pair(shared=shared)
        same(f(*given), write(*expected))
        same(given, expected)
