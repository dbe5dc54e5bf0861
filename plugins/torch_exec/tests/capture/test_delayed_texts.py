"""Texts of tensors, lists and objects are of what these hold where the program makes the text."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import tj_core as tj
import torch


@dataclass
class Record:
    number: int = 1


class Written:
    def __init__(self) -> None:
        self.number = 1

    def __format__(self, spec: str) -> str:
        return f"{spec}{self.number}"


def written_afterwards(x: torch.Tensor, o: Any) -> Any:
    y = x * 2
    return f"{x} {y}", f"{y}", x.add_(1), y.mul_(3)


def list_that_grows(x: torch.Tensor, o: Any) -> Any:
    items = [x]
    text = f"{items}"
    items.append(x + 1)
    return text, items


def set_before(x: torch.Tensor, o: Any) -> Any:
    o.number += x.shape[0]
    return f"{o}", f"{o}", x * 2


def set_afterwards(x: torch.Tensor, o: Any) -> Any:
    text = f"{o:>9}" if isinstance(o, Written) else f"{o}"
    o.number = 7
    return text, x * 2


def new_object(x: torch.Tensor, o: Any) -> Any:
    new = type(o)()
    text = f"{new}"
    new.number = 5
    return text, f"{new}", x * 2


@pytest.mark.parametrize("kind", [Record, Written])
@pytest.mark.parametrize(
    "program", [written_afterwards, list_that_grows, set_before, set_afterwards, new_object]
)
def test_texts_are_those_of_eager(
    program: Callable[..., Any], kind: type[Any], lenient: Any
) -> None:
    def outcomes(jit: Callable[[Any], Any]) -> list[Any]:
        o, run = kind(), jit(program)
        return [run(torch.ones(2) * k, o) for k in range(2)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph breaks
        found = outcomes(tj.jit)
    assert str(found) == str(outcomes(lambda program: program))


def test_texts_of_numbers_are_captured() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            raise ValueError(f"{x.shape}")
        except ValueError as error:
            text = f"{error} {(x.shape[0], 'a')} {x.dtype}"
        return f"{x.shape[0]} {type(x).__name__}", text, x * 2

    jitted = tj.jit(f)
    for n in (2, 3, 4):
        assert jitted(torch.ones(n))[:2] == f(torch.ones(n))[:2]
    assert not tj.stats(jitted).fallbacks


def too_few(x: torch.Tensor) -> str:
    return "{} {}".format(*x.shape[:1])


def unknown_name(x: torch.Tensor) -> str:
    return "{} {rows}".format(x.shape[0], columns=x.shape[0])  # noqa: F522, F524


def other_form(x: torch.Tensor) -> str:
    return f"{x.shape:>9}"


def unknown_form(x: torch.Tensor) -> str:
    return f"{x.shape[0]:q}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("text", [too_few, unknown_name, other_form, unknown_form])
def test_errors_of_formatting_are_caught_where_eager_catches_them(
    text: Callable[[torch.Tensor], str], dynamic: bool, lenient: Any
) -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            return text(x), x * 2
        except (LookupError, TypeError, ValueError) as error:
            return repr(error), x * 3

    jitted = tj.jit(f, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the graph breaks
        for n in (2, 3, 4):
            assert str(jitted(torch.ones(n))) == str(f(torch.ones(n)))
