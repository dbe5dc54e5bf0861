"""Comparison of expansions with captured metadata; where they differ, there is a fallback."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from tj_torch.backend import tj as backend

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def compiled(f: Callable[..., Any], change: Callable[[dict[str, Any]], None], name: str) -> Any:
    """``f`` under backend ``tj``, with captured metadata of calls of ``name`` changed."""

    def changed(graph: torch.fx.GraphModule, examples: Any) -> Any:
        for node in graph.graph.nodes:
            if node.op == "call_function" and node.target.__name__ == name:
                change(node.meta)
        return backend(graph, examples)

    return torch.compile(f, backend=changed)


def sines(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x).t() + 1


CHANGES = {
    "data type": lambda value: value.double(),
    "shape": lambda value: value[:1],
    "strides": lambda value: value.as_strided((2, 3), (1, 2)),
    "kind of value": lambda value: 7,
    "number of values": lambda value: (value, value),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_difference_is_told_with_call_and_line(what: str) -> None:
    def change(meta: dict[str, Any]) -> None:
        meta["example_value"] = CHANGES[what](meta["example_value"])

    g = compiled(sines, change, "sin")
    with pytest.warns(tj.TjWarning, match=f"torch.sin returns another {what}.*\n.*torch.sin"):
        same(g(X), sines(X))
    same(g(X + 1), sines(X + 1))


def test_strides_without_meaning_are_not_compared() -> None:
    def change(meta: dict[str, Any]) -> None:
        meta["example_value"] = meta["example_value"].as_strided((1, 3), (77, 1))

    g = compiled(sines, change, "sin")
    same(g(X[:1]), sines(X[:1]))  # no warning


@torch.compiler.allow_in_graph
def looking_at_memory(x: torch.Tensor) -> torch.Tensor:
    x.untyped_storage()  # so that it is not expanded
    return x * 2


def test_a_call_of_which_capture_says_nothing_is_not_none() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return looking_at_memory(x) + 1

    g = compiled(f, lambda meta: meta.pop("example_value", None), "looking_at_memory")
    with pytest.warns(tj.TjWarning, match="capture does not say what .* returns"):
        same(g(X), f(X))


@dataclasses.dataclass(frozen=True)
class Factor:
    """Object that a program makes and passes to a function that Dynamo does not trace into."""

    value: int
    name: str = "factor"


@torch.compiler.allow_in_graph
def by_factor(x: torch.Tensor, factor: Factor) -> torch.Tensor:
    return x * factor.value


@pytest.mark.parametrize("wrap", [tj.jit, lambda f: torch.compile(f, backend="tj", fullgraph=True)])
def test_an_object_made_inside_and_given_to_a_function(wrap: Callable[[Any], Any]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return by_factor(x, Factor(x.shape[0])) + 1

    g = wrap(f)
    for x in (X, torch.ones(7, 2)):
        same(g(x), f(x))  # no warning


# --------------------------------------------------------------------------- what may differ


@pytest.mark.parametrize("name", ["t_", "unsqueeze_", "squeeze_", "transpose_"])
def test_values_that_change_their_shape_in_place(name: str) -> None:
    arguments = {"unsqueeze_": (0,), "transpose_": (0, 1)}.get(name, ())

    def f(x: torch.Tensor) -> Any:
        y = x[None] * 2 if name == "squeeze_" else x * 2
        before = y.sum(0)
        getattr(y, name)(*arguments)
        return before, y + 1

    g = tj.jit(f)
    for x in (X, X + 1):
        same(g(x), f(x))
    assert tj.stats(g).fallbacks == ()


# --------------------------------------------------------------------------- nested autocast


def test_a_leaf_of_which_autocast_keeps_a_cast_is_written() -> None:
    """Eager keeps using its cached cast; a plugin that lowers autocast does so, too."""

    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            with torch.no_grad():
                w.mul_(2)
            return y.detach(), (x @ w).detach()

    jitted = tj.jit(f)
    results = []
    for run in (f, jitted):
        args = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results.append(run(*args))
    assert ["autocast may keep a cast" in str(w.message) for w in caught] == [True]
    assert all(map(torch.equal, *results))


DTYPES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("outer", DTYPES)
@pytest.mark.parametrize("inner", DTYPES)
@pytest.mark.parametrize("leaf", [False, True])
def test_casts_that_autocast_has_cached(outer: torch.dtype, inner: torch.dtype, leaf: bool) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=outer):
            a = x @ w
            with torch.autocast("cpu", dtype=inner):
                b = w @ w
        return a, b, str(b.dtype), b.sum() if b.dtype is inner else b

    x, w = torch.rand(3, 3), torch.rand(3, 3, requires_grad=leaf)
    expected = f(x, w)
    g = tj.jit(f)
    if expected[1].dtype is inner:
        same(g(x, w)[:2], expected[:2])
        assert tj.stats(g).fallbacks == ()
        return
    with pytest.warns(tj.TjWarning, match="a cast to another data type\n.*w @ w"):
        got = g(x, w)
    same(got[:2], expected[:2])
    assert got[2] == expected[2]


def _four_found(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found = x.nonzero()
    torch._check(found.size(0) == 4)
    return found + 3


def _as_many_found(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found = x.nonzero()
    torch._check(found.size(0) == y.size(0))
    return found[:, 0] * 2


def _both_found(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch._check(x.nonzero().size(0) == y.nonzero().size(0))
    return x.nonzero() + 1


def _sum_is_four(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = (x * 1).sum().item()
    torch._check(total == 4)
    return x + total


ASSERTIONS = [_four_found, _as_many_found, _both_found, _sum_is_four]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("f", ASSERTIONS)
def test_an_assertion_on_data_raises_whenever_it_fails(f: Callable[..., Any], dynamic: Any) -> None:
    """Also an equality, after which PyTorch substitutes the number."""
    fits, other = torch.tensor([1, 1, 1, 1]), torch.tensor([1, 0, 1])
    expected = f(fits, fits)
    jitted = tj.jit(f, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for _ in range(2):
            same(jitted(fits, fits), expected)
            with pytest.raises(RuntimeError):
                f(other, fits)
            with pytest.raises(RuntimeError):
                jitted(other, fits)


def test_a_number_that_an_assertion_fixes_depends_on_data_still() -> None:
    x = torch.tensor([1, 1, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        jitted = tj.jit(_four_found)
        same(jitted(x, x), _four_found(x, x))
    with pytest.raises(RuntimeError) as expected:
        _four_found(x[:3], x)
    with pytest.raises(RuntimeError) as raised:
        jitted(x[:3], x)
    assert str(raised.value) == str(expected.value)


OTHERS: dict[str, Callable[..., Any]] = {
    "views": lambda x, y, mask: x[mask].view(3) * y,
    "sums": lambda x, y, mask: x[mask] + y,
    "products": lambda x, y, mask: y * x[mask].exp(),
    "stacks": lambda x, y, mask: torch.stack([x[mask], y]),
    "inner products": lambda x, y, mask: x[mask] @ y,
    "two masks": lambda x, y, mask: x[mask] * x[y > 0],
    "counts": lambda x, y, mask: torch.bincount(mask.nonzero()[:, 0], minlength=4).view(4) * x,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_data_decide_is_eagers_whatever_was_asserted(name: str) -> None:
    """Eager repeats a row that a mask selects alone, and says what it refuses."""
    f = OTHERS[name]
    jitted = tj.jit(f)
    for skipped, size in ((0, 3), (0, 3), (1, 2), (1, 3), (1, 1), (2, 1), (2, 3), (3, 0)):
        outcomes = [_outcome(each, skipped, size) for each in (f, jitted)]
        assert_equal(outcomes[1], outcomes[0])


def _outcome(f: Callable[..., Any], skipped: int, size: int) -> Any:
    x = torch.linspace(-1, 1, 4).requires_grad_()
    y = torch.linspace(1, 2, size).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        try:
            result = f(x, y, torch.arange(4) > skipped)
            result.sum().backward()
        except (RuntimeError, IndexError) as error:
            return str(error)
    return result.detach(), x.grad, y.grad
