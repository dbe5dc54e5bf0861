"""Handlers of tensor subclasses that print, draw, log, or write to what is not a plain container.

The program runs as it is, with a warning; and its first capture leaves no trace.
"""

from __future__ import annotations

import io
import itertools
import logging
import queue
import random
import sys
import threading
import types
import warnings
from array import array
from collections import UserDict
from contextlib import redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import tj_core as tj
import torch
from tj_suites.subclasses.kinds import Wrapper
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

pytestmark = pytest.mark.sampled(2)


class Meta(type(torch.Tensor)):  # type: ignore[misc]
    """A metaclass that counts."""

    calls = 0


class Held(Wrapper, metaclass=Meta):
    """Wrapper of one tensor; its handler calls ``note``, then runs the operator on that tensor."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.note(str(func))
        plain = pytree.tree_map_only(cls, lambda t: t.held, (args, kwargs or {}))
        result = pytree.tree_map_only(torch.Tensor, cls, func(*plain[0], **plain[1]))
        return return_and_correct_aliasing(func, args, kwargs or {}, result)

    @classmethod
    def note(cls, name: str) -> None:
        pass


class Slots:
    """An object without a ``__dict__``."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


@dataclass(slots=True)
class Record:
    """A dataclass without a ``__dict__``."""

    calls: int = 0


class Counting:
    """An object whose method counts on its class, and in a global."""

    total = 0

    def add(self) -> None:
        global CALLS
        CALLS += 1
        type(self).total += 1


class Net(torch.nn.Module):
    """A module that counts."""

    calls = 0


class Link:
    """An object in a chain of objects."""

    def __init__(self, depth: int) -> None:
        self.calls = 0
        self.next = Link(depth - 1) if depth else None


CALLS = 0
SLOTS, RECORD, COUNTING, NET = Slots(), Record(), Counting(), Net()
SPACE, LOCAL, QUEUE = types.SimpleNamespace(calls=0), threading.local(), queue.Queue[str]()
NUMBERS, BYTES, ARRAY, TENSOR = np.zeros(2), bytearray(), array("i", [0]), torch.zeros(())
VARIABLE: ContextVar[int] = ContextVar("calls", default=0)
DICT, TEXT, LINES = UserDict[str, str](), io.StringIO(), list[str]()
OWN, GENERATOR = random.Random(1), np.random.default_rng(1)
FIRST = Link(6)
LAST: Any = FIRST
while LAST.next is not None:
    LAST = LAST.next
LOGGER = logging.getLogger("hidden state")
LOGGER.setLevel(logging.INFO)
COUNT = itertools.count()
LOCAL.calls = 0
APPEND = LINES.append
ADD = COUNTING.add
PARTIAL = partial(list.append, LINES)


class Handler(logging.Handler):
    """Writes the records to a list."""

    def emit(self, record: logging.LogRecord) -> None:
        LINES.append(record.getMessage())


LOGGER.addHandler(Handler())


def by_default(name: str, lines: list[str] = []) -> None:  # noqa: B006
    lines.append(name)


def by_keyword(name: str, *, lines: list[str] = []) -> None:  # noqa: B006
    lines.append(name)


def on_itself(name: str) -> None:
    on_itself.calls += 1  # type: ignore[attr-defined]


on_itself.calls = 0  # type: ignore[attr-defined]


def fill(name: str) -> None:
    NUMBERS[0] += 1


def deep(name: str) -> None:
    FIRST.next.next.next.next.next.next.calls += 1  # type: ignore[union-attr]


def increments(thing: Any) -> Any:
    def note(name: str) -> None:
        thing.calls += 1

    return note


CASES: dict[str, tuple[Any, Any]] = {
    "print": (lambda name: print(name), lambda: None),
    "a stream": (lambda name: TEXT.write(name), lambda: TEXT.getvalue()),
    "a logger": (lambda name: LOGGER.info(name), lambda: LINES),
    "random": (lambda name: random.random(), lambda: random.getstate()),
    "a random.Random": (lambda name: OWN.random(), lambda: OWN.getstate()),
    "numpy.random": (lambda name: np.random.rand(), lambda: repr(np.random.get_state())),
    "a generator of NumPy": (
        lambda name: GENERATOR.random(),
        lambda: repr(GENERATOR.bit_generator.state),
    ),
    "slots": (increments(SLOTS), lambda: SLOTS.calls),
    "a dataclass": (increments(RECORD), lambda: RECORD.calls),
    "a namespace": (increments(SPACE), lambda: SPACE.calls),
    "a local of the thread": (increments(LOCAL), lambda: LOCAL.calls),
    "a module": (increments(NET), lambda: NET.calls),
    "a metaclass": (increments(Meta), lambda: Meta.calls),
    "a queue": (lambda name: QUEUE.put(name), lambda: QUEUE.qsize()),
    "a dict of the library": (lambda name: DICT.setdefault(name, ""), lambda: dict(DICT)),
    "an array of NumPy": (fill, lambda: NUMBERS.tolist()),
    "an array": (lambda name: ARRAY.append(1), lambda: ARRAY.tolist()),
    "bytes": (lambda name: BYTES.extend(b"a"), lambda: bytes(BYTES)),
    "a tensor": (lambda name: TENSOR.add_(1), lambda: TENSOR.item()),
    "a context variable": (lambda name: VARIABLE.set(VARIABLE.get() + 1), lambda: VARIABLE.get()),
    "a default": (by_default, lambda: list(by_default.__defaults__[0])),  # type: ignore[index]
    "a keyword": (by_keyword, lambda: list(by_keyword.__kwdefaults__["lines"])),
    "a function": (on_itself, lambda: on_itself.calls),  # type: ignore[attr-defined]
    "a class of an object": (lambda name: COUNTING.add(), lambda: Counting.total),
    "a global of a method": (lambda name: ADD(), lambda: CALLS),
    "a bound method": (lambda name: APPEND(name), lambda: LINES),
    "a partial function": (lambda name: PARTIAL(name), lambda: LINES),
    "an object far down": (deep, lambda: LAST.calls),
}
"""Pairs of functions by case: the handler's call, and a reading of the state that is written."""


def reset() -> None:
    global CALLS
    CALLS = Counting.total = Meta.calls = 0
    for thing in (SLOTS, RECORD, SPACE, LOCAL, NET, on_itself, LAST):
        thing.calls = 0
    for lines in (LINES, BYTES, by_default.__defaults__[0], by_keyword.__kwdefaults__["lines"]):  # type: ignore[index]
        lines.clear()
    DICT.clear()
    while QUEUE.qsize():
        QUEUE.get()
    TEXT.seek(0)
    TEXT.truncate()
    del ARRAY[:]
    NUMBERS[:] = 0
    TENSOR.zero_()
    VARIABLE.set(0)
    random.seed(1)
    OWN.seed(1)
    np.random.seed(1)
    GENERATOR.bit_generator.state = np.random.default_rng(1).bit_generator.state


def kind_of(note: Any) -> Any:
    return type("Hidden", (Held,), {"note": staticmethod(note), "__module__": __name__})


def observed(program: Any, note: Any, read: Any) -> list[Any]:
    """State, text and values after each of three calls."""
    reset()
    seen = []
    kind = kind_of(note)
    for i in range(3):
        with redirect_stdout(io.StringIO()) as text:
            result = program(kind(torch.ones(2) * i))
        found = read()
        state = list(found) if isinstance(found, list) else found
        seen.append((state, text.getvalue(), type(result).__name__, result.held.tolist()))
    return seen


@pytest.mark.leaves_changed("random numbers of Python", "random numbers of NumPy")
@pytest.mark.parametrize("case", CASES)
def test_handlers_run_as_often_as_in_eager(jit: Any, case: str) -> None:
    def program(x: Any) -> Any:
        return (x * 2).sin()

    torch._dynamo.reset()
    wanted = observed(program, *CASES[case])
    with pytest.warns(tj.TjWarning, match="operations on a tensor subclass change") as warned:
        assert observed(jit(program), *CASES[case]) == wanted
    assert len([w for w in warned if issubclass(w.category, tj.TjWarning)]) == 1


def test_iterators_are_not_set_back_but_noticed(jit: Any) -> None:
    jitted = jit(lambda x: x * 2)
    kind = kind_of(lambda name: next(COUNT))
    with pytest.warns(tj.TjWarning, match="change .*COUNT: it runs as it is"):
        jitted(kind(torch.ones(2)))
    before = next(COUNT)
    jitted(kind(torch.ones(2)))
    assert next(COUNT) == before + 2


def quiet(name: str) -> None:
    if name == "nothing":
        print(name, random.random(), next(COUNT), QUEUE.put(name))  # type: ignore[func-returns-value]
    LOGGER.debug(name)
    assert SLOTS.calls == 0
    assert TENSOR.item() == 0 if name == "nothing" else True


def test_a_handler_that_could_write_and_does_not_is_compiled(jit: Any) -> None:
    reset()
    stream, filters = sys.stdout, list(LOGGER.filters)
    jitted = jit(lambda x: (x * 2).sin())
    kind = kind_of(quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            jitted(kind(torch.ones(2)))
    assert tj.stats(jitted).entries == 1
    assert sys.stdout is stream
    assert LOGGER.filters == filters


def test_others_print_during_a_capture(jit: Any, capsys: Any) -> None:
    """Another thread's text is heard meanwhile, and is no reason against the program."""
    reset()
    jitted = jit(lambda x: x * 2)
    jitted(kind_of(waits)(torch.ones(2)))
    assert "from beside" in capsys.readouterr().out


def waits(name: str) -> None:
    if name == "nothing":
        print(name)
    thread = threading.Thread(target=print, args=("from beside",))
    thread.start()
    thread.join()
