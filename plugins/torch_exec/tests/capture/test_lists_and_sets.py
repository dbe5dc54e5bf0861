"""Lists and sets that were there before a program: it reads and writes these in each call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import equal_to_eager


class Base:
    calls: list[Any] = []  # noqa: RUF012
    seen: set[Any] = set()  # noqa: RUF012
    nested: tuple[list[Any], int] = ([], 1)

    @classmethod
    def add(cls) -> None:
        cls.calls.append(len(cls.calls))


class Derived(Base):
    pass


class Counted:
    made: list[Any] = []  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        Counted.made.append(cls.__name__)


class Module(torch.nn.Module):
    kept: tuple[list[Any], int] = ([], 1)

    def __init__(self) -> None:
        super().__init__()
        self.own: tuple[list[Any], set[Any]] = ([], {1})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.own[0].append(1)
        self.own[1].add(len(self.own[1]))
        return x * len(self.own[0]) + len(self.own[1]) + len(self.kept[0])


MODULE = Module()
KINDS: set[Any] = {Base}
NUMBERS = {1, 2}


def an_attribute(x: torch.Tensor) -> Any:
    Base.calls.append(1)
    return x * len(Derived.calls)


def a_set_of_a_class(x: torch.Tensor) -> Any:
    Base.seen.add(len(Base.seen))
    return x * len(Derived.seen)


def a_list_in_a_tuple(x: torch.Tensor) -> Any:
    Base.nested[0].append(1)
    return x * len(Base.nested[0])


def a_class_method(x: torch.Tensor) -> Any:
    Derived.add()
    return x * sum(Base.calls)


def a_read(x: torch.Tensor) -> Any:
    return x * (len(Base.calls) + len(Base.seen) + len(Base.nested[0]))


def a_result(x: torch.Tensor) -> Any:
    return x, Derived.calls, Derived.calls is Base.calls


def parts(x: torch.Tensor) -> Any:
    Base.calls.append(1)
    torch._dynamo.graph_break()
    Base.calls.append(2)
    return x * len(Base.calls)


def a_new_object(x: torch.Tensor) -> Any:
    type(Base()).calls.append(1)
    return x * len(Base.calls)


def a_made_class(x: torch.Tensor) -> Any:
    made: Any = type("Made", (Base,), {})
    made.calls.append(1)
    return x * len(made.seen)


def a_class_that_is_counted(x: torch.Tensor) -> Any:
    type("Made", (Counted,), {})
    return x * len(Counted.made)


def a_module(x: torch.Tensor) -> Any:
    return MODULE(x)


def a_set_of_classes(x: torch.Tensor) -> Any:
    KINDS.add(len(KINDS))
    return x * len(KINDS)


def a_set_that_shrinks(x: torch.Tensor) -> Any:
    KINDS.discard(Base)
    NUMBERS.discard(1)
    return x * len(KINDS) * len(NUMBERS)


def a_set_that_is_filled_again(x: torch.Tensor) -> Any:
    KINDS.clear()
    KINDS.update([3, torch.nn.Module])
    return x * len(KINDS)


PROGRAMS = [
    *(an_attribute, a_set_of_a_class, a_list_in_a_tuple, a_class_method, a_read, a_result, parts),
    *(a_new_object, a_made_class, a_class_that_is_counted, a_module),
    *(a_set_of_classes, a_set_that_shrinks, a_set_that_is_filled_again),
]


def state() -> str:
    """Everything that the programs write."""
    sets = [sorted(map(str, each)) for each in (Base.seen, MODULE.own[1], KINDS, NUMBERS)]
    return repr((Counted.made, Base.calls, Base.nested, MODULE.own[0], MODULE.kept, sets))


def reset() -> None:
    for items in (Counted.made, Base.calls, Base.nested[0], MODULE.own[0], MODULE.kept[0]):
        items.clear()
    for kept, first in ((Base.seen, 1), (MODULE.own[1], 1), (KINDS, Base), (NUMBERS, 1)):
        kept.clear()
        kept.add(first)


def observed(program: Callable[[torch.Tensor], Any]) -> list[tuple[str, str]]:
    """Results and writes of four calls; others write between them, too."""
    reset()
    found = []
    for number in range(4):
        found.append((repr(copy.deepcopy(program(torch.ones(1)))), state()))
        if number == 1:
            for items in (Base.calls, Base.nested[0], MODULE.own[0], MODULE.kept[0]):
                items.append(7)
            for kept in (Base.seen, MODULE.own[1], KINDS, NUMBERS):
                kept.add(7)
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_lists_and_sets_are_read_and_written(program: Callable[[torch.Tensor], Any]) -> None:
    torch._dynamo.reset()
    expected = observed(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        assert observed(tj.jit(program, plugins=["torch"])) == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", [an_attribute, a_module], ids=lambda f: f.__name__)
def test_what_writes_to_them_is_captured(program: Callable[[torch.Tensor], Any]) -> None:
    torch._dynamo.reset()
    reset()
    jitted = tj.jit(program, plugins=["torch"], fullgraph=True)
    jitted(torch.ones(1))
    assert tj.stats(jitted).fallbacks == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "made",
    [
        "enum.Enum('E', 'a b')",
        "enum.IntEnum('E', names='a b', module='m')",
        "Own('E', ['a', 'b'])",
        "collections.namedtuple('E', 'a b')",
    ],
)
def test_a_class_that_a_function_makes_is_a_new_one(made: str) -> None:
    text = f"""
import collections, enum
x = torch.ones(2)
class Own(enum.Enum): pass
def f(x):
    E = {made}
    return x + len(E.__name__), E
"""
    equal_to_eager(text, "f(x)[0]", "f(x)[1] is f(x)[1]", "f(x)[1].a is f(x)[1].a")()
