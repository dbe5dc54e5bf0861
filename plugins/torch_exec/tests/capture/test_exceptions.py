"""Texts and attributes of exceptions that a program catches, against eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

X = torch.arange(3.0)


class Speaking(Exception):
    def __str__(self) -> str:
        return f"told {self.args[0]}"


class Shown(Exception):
    def __repr__(self) -> str:
        return "shown"


class Missing(KeyError):
    pass


class Own(Exception):
    def __init__(self, name: str, count: int) -> None:
        self.name = name
        super().__init__(f"{count} of {name}")


class Quiet(Exception):
    def __init__(self, name: str, count: int) -> None:
        self.count = count


class Unquoted(KeyError):
    def __init__(self, key: str) -> None:
        super().__init__(key.upper())


RAISED: dict[str, Callable[[Any], BaseException]] = {
    "own str": lambda x: Speaking("q"),
    "own repr": lambda x: Shown("q"),
    "subclass of KeyError": lambda x: Missing("q"),
    "subclass of KeyError with init": lambda x: Unquoted("q"),
    "own init": lambda x: Own("a", 2),
    "own init alone": lambda x: Quiet("a", 2),
    "KeyError": lambda x: KeyError("q"),
    "KeyError of nothing": lambda x: KeyError(),
    "KeyError of a number": lambda x: KeyError(1),
    "KeyError of two": lambda x: KeyError(1, "q"),
    "KeyError of a tensor": lambda x: KeyError(x),
    "OSError": lambda x: OSError("m"),
    "OSError by number": lambda x: OSError(2, "no"),
    "OSError of a file": lambda x: OSError(13, "no", "file"),
    "UnicodeDecodeError": lambda x: UnicodeDecodeError("utf8", b"a", 0, 1, "why"),
    "SyntaxError": lambda x: SyntaxError("m", ("f", 1, 2, "t")),
    "ImportError": lambda x: ImportError("m"),
    "StopIteration": lambda x: StopIteration(3),
    "SystemExit": lambda x: SystemExit(3),
    "ValueError": lambda x: ValueError("q"),
    "ValueError of a tensor": lambda x: ValueError(x),
    "ValueError of a shape": lambda x: ValueError(x.shape),
    "ValueError of an error": lambda x: ValueError(KeyError("q")),
    "ValueError of a list": lambda x: ValueError([1, "a"]),
}

READ: dict[str, Callable[[Any], Any]] = {
    "str": lambda e: str(e),
    "repr": lambda e: repr(e),
    "f-string": lambda e: f"{e} {e!r}",
    "percent": lambda e: "%s %r" % (e, e),  # noqa: UP031
    "methods": lambda e: (e.__str__(), e.__repr__()),
    "type and arguments": lambda e: (type(e), len(e.args), [str(a) for a in e.args]),
}


def agree(f: Callable[..., Any]) -> None:
    jitted = tj.jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)  # some are run as acquired
        for _ in range(2):
            assert str(jitted(X)) == str(f(X))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("make", RAISED.values(), ids=RAISED)
def test_what_an_exception_says(make: Callable[..., Any], read: Callable[..., Any]) -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            raise make(x)
        except BaseException as error:
            return x + 1, read(error)

    agree(f)


def missing_key(x: torch.Tensor) -> Any:
    try:
        return {}["q"]
    except KeyError as error:
        return x + 1, "missing " + str(error)


def missing_attribute(x: Any) -> Any:
    try:
        return x.nothing
    except AttributeError as error:
        return x + 1, str(error), error.name


def missing_file(x: torch.Tensor) -> Any:
    try:
        raise OSError(2, "no")
    except FileNotFoundError as error:
        return x + 1, error.errno


def refused_shape(x: torch.Tensor) -> Any:
    try:
        return x.view(5, 7)
    except RuntimeError as error:
        return x + 1, str(error)


def refused_operands(x: torch.Tensor) -> Any:
    try:
        return torch.add(x, None)
    except Exception as error:
        return x + 1, type(error).__name__


def cause(x: torch.Tensor) -> Any:
    try:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError(f"no {error}") from error
    except ValueError as error:
        return x + 1, str(error), str(error.__cause__), repr(error.__context__)


@pytest.mark.parametrize(
    "f",
    [missing_key, missing_attribute, missing_file, refused_shape, refused_operands, cause],
)
def test_what_python_raises(f: Callable[..., Any]) -> None:
    agree(f)


def test_the_usual_is_captured() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            raise KeyError("q")
        except KeyError as error:
            return x + 1, str(error)

    jitted = tj.jit(f)
    assert jitted(X)[1] == "'q'"
    assert tj.stats(jitted).fallbacks == ()


def test_only_our_captures_are_corrected() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            raise KeyError("q")
        except KeyError as error:
            return x + 1, str(error)

    for _ in range(2):
        torch.compiler.reset()
        own = "'q'" if torch.__version__ >= (2, 15) else "q"
        assert torch.compile(f, backend="eager")(X)[1] == own
        assert tj.jit(f)(X)[1] == "'q'"
