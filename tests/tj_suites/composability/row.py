"""One row of the composability table: a feature, a program that uses it, and its promised status.

A program gets ``jit`` and returns all that can be observed. It runs twice, with `tj.jit` and with a
``jit`` that returns its argument, so eager PyTorch is the oracle of every row.
"""

from __future__ import annotations

import contextlib
import enum
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tj_core as tj
import torch
from tj_conformance.oracle.compare import differences

__all__ = [
    "Jit",
    "Report",
    "Row",
    "Status",
    "falls_back",
    "raises",
    "run_row",
    "works",
    "works_but",
]

Jit = Callable[..., Any]
"""`tj.jit`, or for eager a function that returns its argument."""


class Status(enum.Enum):
    """Promised status of a feature. It is never silently wrong."""

    WORKS = "works"
    FALLS_BACK = "falls back"
    RAISES = "raises"


@dataclass(frozen=True, slots=True)
class Row:
    """A feature of PyTorch or Python, and its status under `tj.jit`.

    ``why`` is the reason of a fallback or error, or a remark; ``says`` is part of the one warning,
    or of the error, that the user sees.
    """

    name: str
    feature: str
    program: Callable[[Jit], Any]
    status: Status = Status.WORKS
    why: str = ""
    says: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a row: its differences from eager, its warnings and its error."""

    problems: tuple[str, ...]
    tj_warnings: tuple[str, ...]
    error: Exception | None

    @property
    def status(self) -> Status:
        """The observed status."""
        if self.error is not None:
            return Status.RAISES
        return Status.FALLS_BACK if self.tj_warnings else Status.WORKS


def works(program: Callable[[Jit], Any]) -> Row:
    """The row of ``program``, whose docstring names the feature: compiled, and equal to eager."""
    return Row(program.__name__, " ".join((program.__doc__ or "").split()).rstrip("."), program)


def works_but(why: str) -> Callable[[Callable[[Jit], Any]], Row]:
    """The row of a program that equals eager in all that it shows;
    ``why`` is a remark on the rest.
    """
    return lambda program: replace(works(program), why=why)


def falls_back(why: str, says: str) -> Callable[[Callable[[Jit], Any]], Row]:
    """The row of a program that equals eager, with one warning."""
    return lambda program: replace(works(program), status=Status.FALLS_BACK, why=why, says=says)


def raises(why: str, says: str) -> Callable[[Callable[[Jit], Any]], Row]:
    """The row of a program that raises under tj but not in eager."""
    return lambda program: replace(works(program), status=Status.RAISES, why=why, says=says)


@dataclass(slots=True)
class _Outcome:
    """Observations of one run of a program."""

    value: Any
    error: Exception | None
    warned: list[tuple[str, str]]
    tj_warnings: list[str]
    printed: str
    random: torch.Tensor


def run_row(row: Row, jit: Jit = tj.jit) -> Report:
    """Run ``row`` in eager and through ``jit``, and compare all that can be observed."""
    expected = _outcome(row.program, _eagerly)
    got = _outcome(row.program, jit)
    if expected.error is not None:
        raise expected.error  # a row shows what works in eager
    problems = [] if got.error is not None else list(_problems(got, expected))
    return Report(tuple(problems), tuple(got.tj_warnings), got.error)


def _eagerly(fn: Any = None, **options: Any) -> Any:
    return (lambda f: f) if fn is None else fn


def _problems(got: _Outcome, expected: _Outcome) -> list[str]:
    found = [str(d) for d in differences(got.value, expected.value)]
    for what in ("warned", "printed"):
        mine, theirs = getattr(got, what), getattr(expected, what)
        if mine != theirs:
            found.append(f"{what} {mine!r} instead of {theirs!r}")
    if not torch.equal(got.random, expected.random):
        found.append("PyTorch's generator is in another state")
    return found


def _outcome(program: Callable[[Jit], Any], jit: Jit) -> _Outcome:
    torch.manual_seed(0)
    printed, value, error = io.StringIO(), None, None
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(printed):
        warnings.simplefilter("always")
        try:
            value = program(jit)
        except Exception as raised:
            error = raised
    tj_warnings = [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]
    warned = [
        (w.category.__name__, str(w.message))
        for w in caught
        if not issubclass(w.category, tj.TjWarning) and not _once(w)
    ]
    return _Outcome(value, error, warned, tj_warnings, printed.getvalue(), torch.get_rng_state())


def _once(warning: warnings.WarningMessage) -> bool:
    """Check that PyTorch gives ``warning`` once per process: when
    one of its modules is imported.
    """
    return str(warning.message).startswith("`torch.jit.script")
