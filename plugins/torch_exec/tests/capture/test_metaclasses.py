"""Programs with metaclasses: objects made once, checks, properties of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch


class Single(type):
    made: dict[type, Any] = {}  # noqa: RUF012

    def __call__(cls, *args: Any) -> Any:
        if cls not in Single.made:
            Single.made[cls] = super().__call__(*args)
        return Single.made[cls]


class Settings(metaclass=Single):
    def __init__(self, value: float) -> None:
        self.value = value


class Checking(type):
    asked: list[str] = []  # noqa: RUF012

    def __instancecheck__(cls, other: object) -> bool:
        cls.asked.append("instance")
        return hasattr(other, "shape") and len(cls.asked) % 2 == 1

    def __subclasscheck__(cls, other: type) -> bool:
        cls.asked.append("subclass")
        return len(cls.asked) % 2 == 0

    @property
    def level(cls) -> int:
        return len(cls.asked)

    @level.setter
    def level(cls, value: int) -> None:
        cls.asked[:] = ["set"] * value


class HasShape(metaclass=Checking):
    pass


def made_once(x: torch.Tensor) -> Any:
    settings = Settings(3)
    settings.value += 1
    return x * settings.value, Settings(9) is settings


def an_instance(x: torch.Tensor) -> Any:
    return x + isinstance(x, HasShape), isinstance(3, (str, HasShape)), HasShape.asked


def a_subclass(x: torch.Tensor) -> Any:
    return x + issubclass(torch.Tensor, HasShape), HasShape.asked


def a_property(x: torch.Tensor) -> Any:
    HasShape.level = 3
    return x * HasShape.level, HasShape.asked


PROGRAMS: tuple[Callable[[torch.Tensor], Any], ...] = (
    made_once,
    an_instance,
    a_subclass,
    a_property,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_metaclasses_are_asked_in_each_call(program: Callable[[torch.Tensor], Any]) -> None:
    assert _run(tj.jit(program)) == _run(program)


def _run(f: Callable[[torch.Tensor], Any]) -> list[str]:
    Single.made.clear()
    Checking.asked.clear()
    return [repr(f(torch.ones(2))) for _ in range(3)]
