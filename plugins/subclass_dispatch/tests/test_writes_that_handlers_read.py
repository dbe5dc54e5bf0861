"""Programs that write the state which handlers of their tensor subclasses read."""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tj_suites.subclasses.kinds import Wrapper
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.sampled(2)


class Scaled(Wrapper):
    """Wrapper of one tensor, whose operations multiply by global state and by its ``scale``."""

    factor: Any = 1

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scales = [getattr(a, "scale", 1) for a in args if isinstance(a, Scaled)]
        plain = pytree.tree_map_only(Scaled, lambda t: t.held, (args, kwargs or {}))
        return cls(func(*plain[0], **plain[1]) * scales[0] * read())


def read() -> Any:
    cell = CELL()
    numbers = (NUMBER, LIST[0], TABLE.get("k", 7), len(LIST), SPACE.k, OBJECT.k, Scaled.factor)
    for number in numbers:
        cell = cell * number
    return cell * int(os.environ.get("SCALE_OF_TEST", "1"))


class Owner:
    """An object, and a class, with a number."""

    k: Any = 1


def in_closure() -> tuple[Any, Any]:
    number: Any = 1

    def write(value: Any) -> None:
        nonlocal number
        number = value

    return lambda: number, write


NUMBER: Any = 1
LIST: list[Any] = [1]
TABLE: dict[str, Any] = {"k": 1}
SPACE = types.SimpleNamespace(k=1)
OBJECT = Owner()
CELL, set_cell = in_closure()


def set_number(value: Any) -> None:
    global NUMBER
    NUMBER = value


def set_item(value: Any) -> None:
    LIST[0] = value


def append(value: Any) -> None:
    LIST.append(value)


def set_key(value: Any) -> None:
    TABLE["k"] = value


def update(value: Any) -> None:
    TABLE.update(k=value)


def remove(value: Any) -> None:
    TABLE.pop("k", None)


def set_space(value: Any) -> None:
    SPACE.k = value


def rebind(value: Any) -> None:
    global SPACE
    SPACE = types.SimpleNamespace(k=value)


def set_object(value: Any) -> None:
    OBJECT.k = value


def set_class(value: Any) -> None:
    Owner.k = value


def set_own_class(value: Any) -> None:
    Scaled.factor = value


def set_environment(value: Any) -> None:
    os.environ["SCALE_OF_TEST"] = str(value)


WRITES = (
    set_number, set_item, append, set_key, update, remove, set_space, rebind, set_object,
    set_class, set_own_class, set_cell, set_environment,
)  # fmt: skip


@pytest.fixture(autouse=True)
def state() -> Iterator[None]:
    reset()
    yield
    del os.environ["SCALE_OF_TEST"]


def reset() -> None:
    global NUMBER, SPACE
    NUMBER, SPACE = 1, types.SimpleNamespace(k=1)
    LIST[:] = [1]
    TABLE.clear()
    TABLE["k"] = 1
    vars(OBJECT).clear()
    Owner.k = Scaled.factor = 1
    set_cell(1)
    os.environ["SCALE_OF_TEST"] = "1"


def observed(function: Any, given: Any) -> list[Any]:
    reset()
    torch._dynamo.reset()
    return [[y.held.tolist() for y in function(given(i))] for i in range(3)]


def wrapped(i: int) -> Any:
    return Scaled(torch.ones(2) * (i + 1))


def plain(i: int) -> Any:
    return torch.ones(2) * (i + 1)


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__qualname__)
def test_operations_read_what_was_written_before(jit: Any, write: Any) -> None:
    def program(x: Any) -> Any:
        first = x + 1
        write(2)
        second = x + 1
        write(3)
        return first, second, x + 1

    assert observed(jit(program), wrapped) == observed(program, wrapped)


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_operations_of_a_tensor_that_the_program_makes(jit: Any) -> None:
    def program(x: Any) -> Any:
        LIST.append(2)
        y = Scaled(x)
        return y + 1, y + 2

    assert observed(jit(program), plain) == observed(program, plain)


def set_attribute(x: Any) -> Any:
    x.scale = 2
    y = x + 1
    x.scale = 3
    return y, x + 1


def set_attribute_of_result(x: Any) -> Any:
    y = x + 1
    y.scale = 2
    z = y + 1
    y.scale = 3
    return z, y + 1


def delete_attribute(x: Any) -> Any:
    x.scale = 2
    y = x + 1
    del x.scale
    return y, x + 1


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
@pytest.mark.parametrize("program", [set_attribute, set_attribute_of_result, delete_attribute])
def test_attributes_of_the_tensor_itself(jit: Any, program: Any) -> None:
    assert observed(jit(program), wrapped) == observed(program, wrapped)


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_attributes_that_change_between_calls(jit: Any) -> None:
    x, jitted = wrapped(0), jit(lambda x: (x + 1,))
    for scale in (None, 2, 3, 2, 0):
        if scale is not None:
            x.scale = scale
        assert torch.equal(jitted(x)[0].held, (x + 1).held)


def test_writes_that_no_handler_reads_are_captured(jit: Any) -> None:
    other = Owner()
    other.count = 0  # type: ignore[attr-defined]

    def program(x: Any) -> Any:
        other.count = other.count + 1
        return (x + 1,)

    jitted = jit(program)
    for i in range(3):
        assert torch.equal(jitted(wrapped(i))[0].held, wrapped(i).held + 1)
    assert other.count == 3
