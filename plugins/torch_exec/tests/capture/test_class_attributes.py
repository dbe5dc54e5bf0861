"""Attributes that a program sets on a class, read through objects and derived classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.dynamo.releases import guards_class_constants

written = pytest.mark.skipif(
    not guards_class_constants(),
    reason="Dynamo breaks the graph where a class is written",
)


class Base:
    count = 0
    scale: Any = 1

    def __enter__(self) -> Base:
        Base.count += 1
        return self

    def __exit__(self, *error: object) -> None:
        Base.count -= 1

    @classmethod
    def more(cls) -> None:
        cls.count += 1

    def own(self) -> int:
        return 1


class Derived(Base):
    def own(self) -> int:
        return 10 * super().own()


class Hiding(Base):
    count = 5


class Module(torch.nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        return x * self.calls


OUTER = Derived()
MODULE = Module()


def through_an_object(x: torch.Tensor) -> Any:
    Base.count += 1
    return x * OUTER.count


def through_a_new_object(x: torch.Tensor) -> Any:
    Base.scale = x.sum()
    return x * Base().scale


def through_a_derived_class(x: torch.Tensor) -> Any:
    Base.count += 1
    return x * Derived.count + Hiding.count + Hiding().count


def by_a_class_method(x: torch.Tensor) -> Any:
    Base.more()
    return x * getattr(Derived(), "count", 3)


def in_a_context(x: torch.Tensor) -> Any:
    with Base() as outer, Base() as inner:
        y = x * outer.count + inner.count
    return y, Base.count


def of_a_module(x: torch.Tensor) -> Any:
    return MODULE(x) + MODULE.calls


def a_method(x: torch.Tensor) -> Any:
    Base.own = lambda self: Base.count + 2  # type: ignore[method-assign]
    Base.count += 1
    return x * Base().own() + Derived().own()


def before_others_have_it(x: torch.Tensor) -> Any:
    before = hasattr(OUTER, "added")
    Base.added = 3  # type: ignore[attr-defined]
    return x, before, hasattr(OUTER, "added"), hasattr(Derived, "added")


PROGRAMS: tuple[Callable[[torch.Tensor], Any], ...] = (
    through_an_object,
    through_a_new_object,
    through_a_derived_class,
    by_a_class_method,
    in_a_context,
    of_a_module,
    a_method,
    before_others_have_it,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_what_is_set_on_a_class_is_found(program: Callable[[torch.Tensor], Any]) -> None:
    assert _run(tj.jit(program)) == _run(program)


@written
def test_what_only_the_class_has_is_captured() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        Base.count += 1
        Hiding.count += 1
        return x * Base.count + Hiding().own() + OUTER.scale

    assert _run(tj.jit(f, strict=True)) == _run(f)


def _replaced() -> tuple[Callable[[torch.Tensor], Any], Callable[[int], None]]:
    """Program that makes objects of a class in its closure, and how to replace the class."""

    class Local:
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    kinds: dict[str, Any] = {"local": Local}

    def f(x: torch.Tensor) -> Any:
        return Local().scaled(x), kinds["local"]().scaled(x)

    def change(factor: int) -> None:
        nonlocal Local

        class Other:
            def scaled(self, x: torch.Tensor) -> torch.Tensor:
                return x * factor

        Local, kinds["local"] = Other, Other  # type: ignore[assignment,misc]

    return f, change


def test_a_class_in_a_closure_that_is_replaced_is_the_new_one() -> None:
    f, change = _replaced()
    jitted, found = tj.jit(f, strict=True), []
    for factor in (3, 5):
        found.append(_plain(jitted(torch.ones(1))))
        change(factor)
    found.append(_plain(jitted(torch.ones(1))))
    assert found == [[[2.0], [2.0]], [[3.0], [3.0]], [[5.0], [5.0]]]


def _run(f: Callable[[torch.Tensor], Any]) -> list[Any]:
    """Results of three calls as lists of numbers; classes are as before after them."""
    with pytest.MonkeyPatch.context() as patch:
        for cls, name in ((Base, "count"), (Base, "scale"), (Base, "own"), (Hiding, "count")):
            patch.setattr(cls, name, getattr(cls, name))
        patch.setattr(Module, "calls", 0)
        found = [_plain(f(torch.tensor([1.0, 2.0]))) for _ in range(3)]
    if hasattr(Base, "added"):
        del Base.added
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
