"""Claims of executors given inline: whole calls, calls in bodies, and declines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_core.extend import BoundSymbol, Claim, Decline, Executor, RuleTable, hookimpl

X = torch.linspace(-2, 2, 8).reshape(2, 4)


class Spy:
    """Executor that runs PyTorch's own function and counts its calls."""

    def __init__(
        self, name: str, check: Callable[[BoundSymbol], bool | Decline] | None = None, **claims: Any
    ) -> None:
        self.calls: list[str] = []
        self.table: RuleTable[Claim] = RuleTable("claim")
        self.executor = Executor(name, self.table)
        self.check = check
        self.tj_name = name

    def claims(self, symbol: str, function: Callable[..., Any]) -> Spy:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(symbol)
            return function(*args, **kwargs)

        self.table.set(symbol, Claim(run, self.check))
        return self

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        return (self.executor,)


def gelu_twice(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.gelu(x) * 2)


def names(f: Any) -> list[str]:
    return [call.symbol.qualname for call in tj.last_trace(f).calls]


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("how", ["executors", "plugins", "session"])
def test_a_torch_function_is_claimed(how: str) -> None:
    spy = Spy("spy").claims("torch.nn.functional.gelu", F.gelu)
    if how == "executors":
        g = tj.jit(gelu_twice, executors=[spy.executor, "..."])
    elif how == "plugins":
        g = tj.jit(gelu_twice, plugins=[spy, "..."])
    else:
        g = tj.jit(gelu_twice, session=tj.Session(plugins=[spy, "..."]))
    for n in range(1, 3):
        same(g(X), gelu_twice(X))
        assert spy.calls == ["torch.nn.functional.gelu"] * 2 * n
    assert names(g) == ["spy.torch.nn.functional.gelu", "torch.mul", "spy.torch.nn.functional.gelu"]
    assert tj.explain(g).counts() == {"spy": 2, "torch": 1}
    for call in tj.last_trace(g).calls:
        assert call.executor == ("spy" if call.symbol.namespace == "spy" else "torch")


def test_a_claimed_call_keeps_what_it_stands_for() -> None:
    spy = Spy("spy").claims("torch.nn.functional.gelu", F.gelu)
    g = tj.jit(gelu_twice, executors=[spy.executor])
    g(X)
    before, after = tj.last_trace(g, stage="ACQUIRED").calls[0], tj.last_trace(g).calls[0]
    assert after.parent == before.label
    assert after.source == before.source
    assert after.flat_outs == before.flat_outs
    assert [c.symbol.qualname for c in after.body.calls] == ["torch.nn.functional.gelu"]


def test_an_operator_inside_a_body_is_claimed_by_descending() -> None:
    spy = Spy("spy").claims("aten.mm.default", torch.ops.aten.mm.default)

    def f(x, w):
        return F.relu(x @ w) + 1

    g = tj.jit(f, executors=[spy.executor])
    w = torch.randn(4, 3)
    same(g(X, w), f(X, w))
    assert spy.calls == ["aten.mm.default"]
    assert names(g) == ["spy.aten.mm.default", "torch.nn.functional.relu", "torch.add"]
    rows = list(tj.explain(g).rows())
    assert rows[0][2] == "(its body)"
    assert rows[1][0].startswith("  ")


@pytest.mark.parametrize(
    "target", ["aten.addmm.default", "aten.bmm.default", "aten._softmax.default"]
)
def test_values_are_right_whatever_is_claimed(target: str) -> None:
    _namespace, name, overload = target.split(".")
    function = getattr(getattr(torch.ops.aten, name), overload)
    spy = Spy("spy").claims(target, function)

    def f(x, w, b):
        h = F.linear(x, w, b)
        scores = torch.matmul(h.view(1, 2, 4), h.view(1, 2, 4).transpose(1, 2))
        return F.softmax(scores, -1), h

    args = X, torch.randn(4, 4), torch.randn(4)
    g = tj.jit(f, executors=[spy.executor])
    same(g(*args), f(*args))
    assert set(spy.calls) == {target}


def test_the_first_executor_in_order_wins() -> None:
    first = Spy("first").claims("torch.sin", torch.sin)
    second = Spy("second").claims("torch.sin", torch.sin).claims("torch.cos", torch.cos)
    f = lambda x: x.sin() + x.cos()  # noqa: E731
    for order, counts in (
        ([first, second], {"first": 1, "second": 1, "torch": 1}),
        ([second, first], {"second": 2, "torch": 1}),
    ):
        g = tj.jit(f, executors=[spy.executor for spy in order])
        same(g(X), f(X))
        assert tj.explain(g).counts() == counts
    session = tj.Session(plugins=[first, second, "..."])
    g = tj.jit(f, session=session, executors=["second", "..."])
    g(X)
    assert tj.explain(g).counts() == {"second": 2, "torch": 1}


def test_reasons_for_declining_are_explained() -> None:
    def check(call: BoundSymbol) -> bool | Decline:
        wide = call.flat_args[0].shape[1] > 4
        return True if wide else Decline(f"only {call.flat_args[0].shape[1]} columns")

    spy = Spy("picky", check).claims("torch.sin", torch.sin)
    g = tj.jit(lambda x: torch.cat([x.sin(), x], 1).sin(), executors=[spy.executor])
    g(X)
    assert spy.calls == ["torch.sin"]
    text = str(tj.explain(g))
    assert "picky: only 4 columns" in text
    assert "picky: has no claim for torch.cat" in text
    assert tj.explain(g).counts() == {"picky": 1, "torch": 2}


def test_nothing_is_claimed_where_gradients_are_needed() -> None:
    spy = Spy("spy").claims("torch.sin", torch.sin).claims("aten.mm.default", torch.mm)
    spy.claims("torch.sum", torch.sum)

    def f(x, w):
        return (x.sin() @ w).sum(), (x + 1).sin()

    g = tj.jit(f, executors=[spy.executor])
    w = torch.randn(4, 3, requires_grad=True)
    out = g(X, w)
    assert spy.calls == ["torch.sin"] * 2  # neither depends on w
    assert "aten.mm.default" not in names(g)
    same(torch.autograd.grad(out[0], w), torch.autograd.grad(f(X, w)[0], w))
    assert "spy: its outputs need gradients" in str(tj.explain(g))
    spy.calls.clear()
    with torch.no_grad():
        same(g(X, w), f(X, w))
    assert spy.calls == ["torch.sin", "aten.mm.default", "torch.sum", "torch.sin"]


def test_under_no_grad_inside_the_program_calls_are_claimed() -> None:
    spy = Spy("spy").claims("torch.sin", torch.sin)

    def f(w):
        with torch.no_grad():
            y = w.sin()
        return (w.sin() * y).sum()

    g = tj.jit(f, executors=[spy.executor])
    w = torch.randn(4, requires_grad=True)
    out = g(w)
    assert spy.calls == ["torch.sin"]
    same(torch.autograd.grad(out, w), torch.autograd.grad(f(w), w))


@pytest.mark.parametrize(("functional", "calls"), [("auto", ["aten.add.Tensor"]), ("never", [])])
def test_a_mutating_call_is_taken_apart_where_it_writes_nothing(functional, calls) -> None:
    """In functional form, an executor may claim a call of its body; as acquired, it stays whole."""
    spy = Spy("spy").claims("aten.add.Tensor", torch.add)
    session = tj.Session(["torch"], overrides={"torch": {"functional": functional}})
    g = tj.jit(lambda x: x.add_(1), executors=[spy.executor], session=session)
    x = X.clone()
    assert g(x) is x
    same(x, X + 1)
    assert (spy.calls, x._version) == (calls, 1)


def test_autograd_sees_writes_to_what_a_gradient_needs() -> None:
    """Without traced gradients, the program stays as acquired, even if executors claim calls."""

    def f(x):
        z = x * 2
        w = z * z
        z.detach().mul_(3)
        return w.sin()

    spy = Spy("spy").claims("torch.sin", torch.sin)
    g = tj.jit(f, executors=[spy.executor])
    for fn in (f, g):
        x = X.clone().requires_grad_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            fn(x).sum().backward()
    with torch.no_grad():
        same(g(X), f(X))
    assert spy.calls == ["torch.sin"]


def test_claims_under_autocast_see_what_runs() -> None:
    seen = []

    def check(call: BoundSymbol) -> bool:
        seen.append(call.flat_args[0].dtype.name)
        return True

    spy = Spy("spy", check).claims("aten.mm.default", torch.ops.aten.mm.default)

    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ w

    g = tj.jit(f, executors=[spy.executor])
    w = torch.randn(4, 3)
    same(g(X, w), f(X, w))
    assert set(seen) == {"bfloat16"}
    assert spy.calls == ["aten.mm.default"]


def test_printed_traces_with_claims_run() -> None:
    spy = Spy("spy").claims("torch.sin", torch.sin)
    g = tj.jit(lambda x: x.sin() * 2, session=tj.Session(plugins=[spy, "..."]))
    g(X)
    trace = tj.last_trace(g)
    assert "from tj_core.namespaces import spy" in str(trace)
    assert "spy.torch.sin(x)" in str(trace)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("torch.Tensor.exp", "torch.exp"),
        ("torch.Tensor.matmul", "torch.matmul"),
        ("torch.special.exp2", "torch.exp2"),
        ("torch._C._nn.gelu", "torch.nn.functional.gelu"),
        ("torch.ops.aten.exp.default", "aten.exp.default"),
    ],
)
def test_a_claim_for_another_spelling_says_what_programs_call_it(key: str, name: str) -> None:
    spy = Spy("spy").claims(key, torch.exp)
    said = f"in programs '{key}' is called '{name}'"
    with pytest.raises(tj.TjError, match=said):
        tj.Session([spy, "torch"], overrides={"strict": True})
    with pytest.warns(tj.TjWarning, match=said):
        tj.Session([spy, "torch"], overrides={"strict": False})


@pytest.mark.parametrize("key", ["torch.exp", "torch.Tensor.view", "aten.exp.default", "torch.*"])
def test_of_the_names_in_programs_nothing_is_said(key: str) -> None:
    tj.Session([Spy("spy").claims(key, torch.exp), "torch"], overrides={"strict": True})
