"""Handlers of tensor subclasses that read state which changes between calls."""

from __future__ import annotations

import array
import datetime
import os
import threading
import time
import types
import uuid
import warnings
from contextvars import ContextVar
from time import perf_counter
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_suites.subclasses.kinds import Wrapper
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.sampled(3)


class Scaled(Wrapper):
    """Wrapper of one tensor, whose operations multiply their results by ``factor()``."""

    own: Any = 2

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = pytree.tree_map_only(cls, lambda t: t.held, (args, kwargs or {}))
        return cls(func(*plain[0], **plain[1]) * cls.factor())

    @staticmethod
    def factor() -> Any:
        return 1


class Holder:
    """An object, and a class, with a number."""

    number: Any = 2
    scale: Any = 2

    def __init__(self) -> None:
        self.scale = 2

    def read(self) -> Any:
        return NUMBER


class Derived(Holder):
    """An object that inherits its numbers, and computes one."""

    __slots__ = ("slot",)

    @property
    def doubled(self) -> Any:
        return self.inner()

    def inner(self) -> Any:
        return self.scale

    def __call__(self) -> Any:
        return self.scale


NUMBER: Any = 2
HOLDER, SPACE = Holder(), types.SimpleNamespace(scale=2)
TABLE: dict[str, Any] = {"scale": 2}
ITEMS: list[Any] = [2]
TENSOR = torch.tensor(2.0)
REBOUND: Any = types.SimpleNamespace(scale=2)
OTHER: Any = torch.tensor(2.0)
OBJECT, SLOTTED = Derived(), Derived()
SLOTTED.slot = 2  # type: ignore[attr-defined]
NESTED: dict[str, Any] = {"a": {"b": [2]}}
MIXED: list[Any] = [torch.tensor(2.0), types.SimpleNamespace(scale=2)]
ARRAY = array.array("d", [2.0])
VARIABLE: ContextVar[Any] = ContextVar("VARIABLE", default=2)
LOCAL = threading.local()
LOCAL.scale = 2
NET = torch.nn.Linear(1, 1)
NET.scale = 2
BY_DEFAULT: dict[str, Any] = {"scale": 2}


def helper() -> Any:
    return 2


def set_global(name: str) -> Any:
    def write(value: Any) -> None:
        globals()[name] = value

    return write


def set_helper(value: Any) -> None:
    globals()["helper"] = lambda: value


def in_closure() -> tuple[Any, Any]:
    found: Any = 2

    def write(value: Any) -> None:
        nonlocal found
        found = value

    return lambda: found, write


def by_default(table: dict[str, Any] = BY_DEFAULT) -> Any:
    return table["scale"]


def set_inherited(value: Any) -> None:
    """Set an attribute of a base, of the class or of the object, each hiding the one before."""
    place = (Holder, Derived, OBJECT)[VALUES.index(value) % 3]
    for owner in (Holder, Derived, OBJECT):
        if "late" in vars(owner):
            del owner.late  # type: ignore[union-attr]
    place.late = value  # type: ignore[union-attr]


def set_environment(value: Any) -> None:
    if value == 1:
        os.environ.pop("SCALE_OF_TEST", None)
    else:
        os.environ["SCALE_OF_TEST"] = repr(float(value))


def environment() -> Any:
    return float(os.environ.get("SCALE_OF_TEST", "7"))


CASES: dict[str, tuple[Any, Any]] = {
    "a global": (lambda: NUMBER, set_global("NUMBER")),
    "a global of a method": (lambda: HOLDER.read(), set_global("NUMBER")),
    "a dict": (lambda: TABLE["scale"], lambda value: TABLE.update(scale=value)),
    "a list": (lambda: ITEMS[0], lambda value: ITEMS.__setitem__(0, value)),
    "a namespace": (lambda: SPACE.scale, lambda value: setattr(SPACE, "scale", value)),
    "an object": (lambda: HOLDER.scale, lambda value: setattr(HOLDER, "scale", value)),
    "a class": (lambda: Holder.number, lambda value: setattr(Holder, "number", value)),
    "its own class": (lambda: Scaled.own, lambda value: setattr(Scaled, "own", value)),
    "a function": (lambda: helper(), set_helper),
    "a closure": in_closure(),
    "a tensor": (lambda: TENSOR, lambda value: TENSOR.fill_(value)),
    "another object": (
        lambda: REBOUND.scale,
        lambda value: set_global("REBOUND")(types.SimpleNamespace(scale=value)),
    ),
    "another tensor": (
        lambda: OTHER,
        lambda value: set_global("OTHER")(torch.tensor(float(value))),
    ),
    "an inherited attribute": (lambda: getattr(OBJECT, "late", 9), set_inherited),
    "an attribute of a property": (
        lambda: OBJECT.doubled,
        lambda value: setattr(OBJECT, "scale", value),
    ),
    "an attribute of a call": (lambda: OBJECT(), lambda value: setattr(OBJECT, "scale", value)),
    "a slot": (lambda: SLOTTED.slot, lambda value: setattr(SLOTTED, "slot", value)),  # type: ignore[attr-defined]
    "a nested list": (
        lambda: NESTED["a"]["b"][0],
        lambda value: NESTED["a"]["b"].__setitem__(0, value),
    ),
    "a tensor in a list": (
        lambda: MIXED[0],
        lambda value: MIXED.__setitem__(0, torch.tensor(float(value))),
    ),
    "an object in a list": (
        lambda: MIXED[1].scale,
        lambda value: setattr(MIXED[1], "scale", value),
    ),
    "an array": (lambda: ARRAY[0], lambda value: ARRAY.__setitem__(0, value)),
    "a context variable": (lambda: VARIABLE.get(), lambda value: VARIABLE.set(value)),
    "a variable of a thread": (lambda: LOCAL.scale, lambda value: setattr(LOCAL, "scale", value)),
    "a module": (lambda: NET.scale, lambda value: setattr(NET, "scale", value)),
    "a default": (by_default, lambda value: BY_DEFAULT.update(scale=value)),
    "the environment": (environment, set_environment),
    "the name of a thread": (
        lambda: len(threading.current_thread().name),
        lambda value: setattr(threading.current_thread(), "name", "t" * (2 + VALUES.index(value))),
    ),
}
VALUES = (2, 3, 0, 1, -0.0, 0.0, 2.5, True, 2)


def scaled(factor: Any) -> Any:
    return type("Kind", (Scaled,), {"factor": staticmethod(factor), "__module__": __name__})


def observed(program: Any, case: str) -> list[Any]:
    factor, write = CASES[case]
    kind, found = scaled(factor), []
    for value in VALUES:
        write(value)
        held = program(kind(torch.tensor([1.0, -2.0]))).held
        found.append((held.tolist(), torch.signbit(held).tolist()))
    return found


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
@pytest.mark.parametrize("broken", [False, True], ids=["", "with_a_graph_break"])
@pytest.mark.parametrize("case", CASES)
def test_each_call_reads_anew(jit: Any, case: str, broken: bool) -> None:
    def program(x: Any) -> Any:
        y = x + x
        if broken:
            torch._dynamo.graph_break()
        return y.abs()

    torch._dynamo.reset()
    name = threading.current_thread().name
    try:
        assert observed(jit(program), case) == observed(program, case)
    finally:
        threading.current_thread().name = name


def test_one_program_for_values_that_stay(jit: Any) -> None:
    jitted = jit(lambda x: (x + x).abs())
    kind = scaled(CASES["a dict"][0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (2, 2, 3, 2, 3):
            TABLE["scale"] = value
            jitted(kind(torch.ones(2)))
    assert tj.stats(jitted).entries == 2
    assert any(guard.text.startswith("TABLE == {'scale': ") for guard in tj.guards(jitted))


def test_programs_for_values_have_a_limit(jit: Any) -> None:
    factor, write = CASES["a global"]
    kind, jitted = scaled(factor), jit(lambda x: x + x)
    with pytest.warns(
        tj.TjWarning, match="8 programs were compiled for values of NUMBER"
    ) as warned:
        for value in range(12):
            write(value)
            assert jitted(kind(torch.ones(2))).held.tolist() == [2 * value] * 2
    assert len(warned) == 1
    assert tj.stats(jitted).entries == 8


def test_checks_take_little_time(jit: Any) -> None:
    """A microsecond or two for the values that the methods of a class read."""
    jitted = jit(lambda x: x + x)
    x = scaled(CASES["a dict"][0])(torch.ones(2))
    jitted(x)
    start = time.perf_counter()
    for _ in range(200):
        jitted(x)
    assert (time.perf_counter() - start) / 200 < 2e-3


ANEW = {
    "time": lambda: time.time(),
    "a counter": lambda: perf_counter(),
    "a date": lambda: datetime.datetime.now().timestamp(),
    "an identity": lambda: uuid.uuid4().int % 1_000_003,
    "bytes of the system": lambda: int.from_bytes(os.urandom(4), "little"),
}


@pytest.mark.parametrize("case", ANEW)
def test_what_answers_anew_is_asked_in_each_call(jit: Any, case: str) -> None:
    kind, jitted = scaled(ANEW[case]), jit(lambda x: x + 1)
    found = set()
    with pytest.warns(tj.TjWarning, match="answers anew in each call"):
        for _ in range(3):
            found.add(jitted(kind(torch.ones(1, dtype=torch.float64))).held.item())
            time.sleep(0.001)
    assert len(found) == 3


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_a_subclass_made_after_a_graph_break_reads_anew(jit: Any) -> None:
    kind = scaled(CASES["a list"][0])

    def program(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return kind(y) + 1

    jitted = jit(program)
    for value in (2, 3, 5):
        ITEMS[0] = value
        expected = program(torch.ones(2)).held
        assert torch.equal(jitted(torch.ones(2)).held, expected)
