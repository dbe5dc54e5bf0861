"""Properties, ``__getattr__`` and dicts of objects are asked as often as in eager, in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.dynamo.releases import own_dicts

X = torch.arange(1.0, 4.0)

Given = tuple[Callable[[torch.Tensor], Any], Callable[[], Any], tuple[Callable[[], Any], ...]]
"""A program, what is seen after each call, and changes before further calls."""


class Property:
    """A property that counts, and is missing from the sixth time on."""

    count = 0

    @property
    def known(self) -> float:
        self.count += 1
        if self.count > 5:
            raise AttributeError("known")
        return float(self.count)


class Counting:
    """A ``__getattr__`` that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        self.count += 1
        if name != "made":
            raise AttributeError(name)
        return 3.0


def asked() -> Given:
    a = Counting()

    def f(x: torch.Tensor) -> torch.Tensor:
        x = x * 2 if hasattr(a, "made") else x * 3
        return x * 5 if hasattr(a, "absent") else x

    return f, lambda: a.count, (lambda: setattr(a, "absent", 1), lambda: delattr(a, "absent"))


def asked_for_a_property() -> Given:
    a = Property()
    return lambda x: x * 2 if hasattr(a, "known") else x * 3, lambda: a.count, (int, int, int, int)


def with_a_default() -> Given:
    a = Counting()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * getattr(a, "made", 5.0) + getattr(a, "absent", 7.0)

    return f, lambda: a.count, (lambda: setattr(a, "absent", 1.0), lambda: setattr(a, "made", 2.0))


def a_property_with_a_default() -> Given:
    a = Property()
    return lambda x: x * getattr(a, "known", 2.0), lambda: a.count, (int, int, int, int)


def read() -> Given:
    a = Counting()
    return lambda x: x * a.made, lambda: a.count, (lambda: setattr(a, "made", 2.0),)


def in_a_module() -> Given:
    class M(torch.nn.Module):
        def __getattr__(self, name: str) -> Any:
            if name != "made":
                return super().__getattr__(name)
            vars(self)["count"] = vars(self).get("count", 0) + 1
            return 3.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.made * getattr(self, "absent", 2.0)

    m = M()
    return m.forward, lambda: m.count, (lambda: setattr(m, "absent", 5.0),)


def own_dict() -> Given:
    a = type("A", (), {})()

    def f(x: torch.Tensor) -> Any:
        a.__dict__["count"] = a.__dict__.get("count", 0) + 1
        return x * len(vars(a)), "z" in vars(a)

    return f, lambda: a.count, (lambda: setattr(a, "z", 1), lambda: delattr(a, "z"))


PROGRAMS = [
    asked,
    asked_for_a_property,
    with_a_default,
    a_property_with_a_default,
    read,
    in_a_module,
    own_dict,
]


@pytest.mark.filterwarnings("ignore:tj. .*reads the dict of an object:tj_core.TjWarning")  # 2.10
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_code_runs_as_often_as_in_eager(program: Callable[[], Given]) -> None:
    def seen(jit: Callable[..., Any]) -> list[Any]:
        f, count, changes = program()
        f = jit(f)
        found = [f(X), count(), f(X), count()]
        for change in changes:
            change()
            found += [f(X), count()]
        return found

    jitted: list[Any] = []

    def jit(f: Any) -> Any:
        jitted.append(tj.jit(f))
        return jitted[0]

    torch.testing.assert_close(seen(jit), seen(lambda f: f))
    breaks = program in (in_a_module, own_dict) and own_dicts() is None
    assert breaks or not tj.stats(jitted[0]).fallbacks
