"""Handlers of tensor subclasses that read state which changes between calls."""

from __future__ import annotations

import time
import types
import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from torch.utils import _pytree as pytree


class Scaled(torch.Tensor):
    """Wrapper of one tensor, whose operations multiply their results by ``factor()``."""

    held: torch.Tensor
    own: Any = 2

    def __new__(cls, held: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["held"])

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


NUMBER: Any = 2
HOLDER, SPACE = Holder(), types.SimpleNamespace(scale=2)
TABLE: dict[str, Any] = {"scale": 2}
ITEMS: list[Any] = [2]
TENSOR = torch.tensor(2.0)


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
    assert observed(jit(program), case) == observed(program, case)


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
