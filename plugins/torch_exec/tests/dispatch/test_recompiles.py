"""Limit of recompilations for values of Python objects."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch

X = torch.arange(3.0)
NAMES = [f"name  # {i} == {i}" for i in range(12)]


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_values_of_one_string_are_compiled_for_up_to_a_limit() -> None:
    def f(x, name):
        return x * len(name) + int(name[7:9])

    g = tj.jit(f, plugins=["torch"])
    for name in NAMES[:8]:
        same(g(X, name), f(X, name))
    assert tj.stats(g).entries == 8
    with pytest.warns(tj.TjWarning, match=r"8 programs were compiled for values of L\['name'\]"):
        same(g(X, NAMES[8]), f(X, NAMES[8]))
    for name in (*NAMES, *NAMES):  # no second warning, which would be an error
        same(g(X, name), f(X, name))
    assert tj.stats(g).entries == 8 == tj.stats(g).misses
    assert tj.stats(g).hits == 16
    assert len(tj.stats(g).fallbacks) == 1


def test_what_differs_in_something_else_is_compiled() -> None:
    f = lambda x, name: x * len(name)  # noqa: E731
    g = tj.jit(f, plugins=["torch"], recompile_limit=2)
    for name in NAMES[:2]:
        same(g(X, name), f(X, name))
    for dtype in (torch.float64, torch.int32, torch.float16):
        same(g(X.to(dtype), NAMES[0]), f(X.to(dtype), NAMES[0]))
    assert tj.stats(g).entries == 5
    with pytest.warns(tj.TjWarning, match="recompile_limit"):
        same(g(X, NAMES[2]), f(X, NAMES[2]))


@pytest.mark.parametrize("kind", ["attribute", "key", "length", "closure"])
def test_the_reason_says_which_value_it_is(kind: str) -> None:
    class Box:
        name = ""

    box, table, now = Box(), {"k": ""}, ""

    def f(x, names):
        value = {"attribute": box.name, "key": table["k"], "closure": now}.get(kind)
        return x + (len(names) if value is None else len(value))

    g = tj.jit(f, plugins=["torch"], recompile_limit=3, dynamic=False)
    names: list[str] = []

    def run() -> None:
        nonlocal now
        box.name = table["k"] = now = "n" * len(names)
        same(g(X, names if kind == "length" else []), f(X, names if kind == "length" else []))
        names.append("n")

    for _ in range(3):
        run()
    with pytest.warns(tj.TjWarning, match="3 programs were compiled for values of"):
        run()
    assert tj.stats(g).entries == 3
    expected = {"attribute": ".name", "key": "['k']", "length": "len(L['names'])", "closure": ""}
    assert expected[kind] in tj.stats(g).fallbacks[0].reason.split(", and")[0]
