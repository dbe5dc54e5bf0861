"""Arguments by position, keyword and default are Python's, and so are wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal, assert_jits
from torch import nn

X = torch.arange(6.0).reshape(2, 3)

equal, twice = assert_equal, assert_jits


def scaled(x: torch.Tensor, scale: float = 2.0, *, shift: float = 0.0) -> torch.Tensor:
    """Scales."""
    return x * scale + shift


def test_arguments_by_position_keyword_and_default() -> None:
    g = tj.jit(scaled)
    for args, kwargs in (
        ((X,), {}),
        ((X, 3.0), {}),
        ((), {"x": X}),
        ((X,), {"shift": 1.0}),
        ((), {"shift": 1.0, "scale": 4.0, "x": X}),
    ):
        equal(g(*args, **kwargs), scaled(*args, **kwargs))


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((X, 1.0, 2.0), {}), ((X,), {"x": X}), ((X,), {"wrong": 1})]
)
def test_a_wrong_call_is_pythons_type_error(args: Any, kwargs: Any) -> None:
    with pytest.raises(TypeError):
        scaled(*args, **kwargs)
    with pytest.raises(TypeError):
        tj.jit(scaled)(*args, **kwargs)


def test_a_wrong_call_of_a_plain_function_names_it() -> None:
    def f(x, y):
        return x + y

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        tj.jit(f)(X)


def test_parameters_with_the_names_of_generated_code() -> None:
    def f(fn, rows, frame, check, run, miss, hits, is_compiling):
        return fn + rows + frame + check + run + miss + hits + is_compiling

    twice(f, *[X] * 8)


def test_parameters_named_like_those_of_the_wrapper() -> None:
    def f(args, kwargs, call, make):
        return args - kwargs * call + make

    twice(f, X, X + 1, X + 2, X + 3)
    g = tj.jit(f)
    equal(g(X, kwargs=X, call=X, make=X), f(X, X, X, X))


def test_positional_only_parameters() -> None:
    def f(x, /, y, *, z):
        return x + y * z

    twice(f, X, X, z=2.0)
    with pytest.raises(TypeError, match="positional"):
        tj.jit(f)(x=X, y=X, z=1)


def test_changed_defaults_are_seen() -> None:
    def f(x, k=1.0):
        return x * k

    g = tj.jit(f)
    equal(g(X), X)
    f.__defaults__ = (4.0,)
    equal(g(X), X * 4)


class Open(nn.Module):
    """A module whose ``self`` has another name."""

    def forward(this, x: torch.Tensor, **named: int) -> tuple[torch.Tensor, list[str]]:
        return x * 2, sorted(named)


def given(a: Any, /, b: Any, **named: Any) -> tuple[Any, ...]:
    return a, b, named


def refusing(x: torch.Tensor) -> Any:
    try:
        return x + 1, given(1, 2, **{"b": 3})
    except TypeError:
        return x - 1


TWICE: dict[str, Callable[[Any], Any]] = {
    "self": lambda module: module(X, this=1),
    "self of PyTorch": lambda module: module(X, self=1),
    "by position": lambda module: module(X, x=1),
}


@pytest.mark.filterwarnings("ignore:tj:UserWarning")
@pytest.mark.parametrize("name", TWICE)
def test_what_is_given_twice_is_refused(name: str) -> None:
    call, module = TWICE[name], Open()
    for f in (module, tj.jit(module)):
        with pytest.raises(TypeError, match="multiple values for argument"):
            call(f)
    with pytest.raises(TypeError, match="multiple values for argument"):
        tj.jit(lambda module: call(module))(module)


@pytest.mark.filterwarnings("ignore:tj:UserWarning")
def test_what_is_given_twice_is_refused_inside() -> None:
    equal(tj.jit(refusing)(X), refusing(X))
    twice(lambda x: (x + 1, given(1, 2, a=3)), X)
