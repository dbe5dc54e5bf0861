"""Programs run as installed, those of a batch compiled together, and compared with eager."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from tj_core.testing.rehearsing import rehearsal

from tj_conformance.oracle.configurations import configured, warnings_of_tj

if TYPE_CHECKING:
    from tj_conformance.installed.subject import Subject

__all__ = ["BATCH", "Verdict", "hold"]

BATCH = 24
"""Number of programs that one run of a C++ compiler compiles."""

PASS = "the pass "
"""Start of the reason of a fallback that is a failure of tj itself."""

LOST = "has changed in Python objects before is lost"
"""Part of the warning where a part of a program with graph breaks raises (docs/limits.md)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The faults of one program, and the count of compiled regions that ran for the first time."""

    subject: Subject
    problems: tuple[str, ...]
    regions: int


def hold(subjects: Sequence[Subject], *, rehearse: bool = True) -> Iterator[Verdict]:
    """Run ``subjects`` in one session: first to compile their regions together, then in earnest.

    Without ``rehearse`` each region is compiled where it is met.
    """
    with configured() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where they are errors, a fallback is none any more
        if rehearse:
            _rehearse(subjects, session)
        for subject in subjects:
            _forget()
            yield _verdict(subject, session)


def _rehearse(subjects: Sequence[Subject], session: tj.Session) -> None:
    with rehearsal(session):
        for subject in subjects:
            _forget()
            with suppress(Exception):  # it raises again in earnest
                list(subject.run(tj.jit))


def _forget() -> None:
    """Reset Dynamo, which gives up on code that it compiles often, and seed the generator."""
    torch.compiler.reset()
    torch.manual_seed(0)


def _verdict(subject: Subject, session: tj.Session) -> Verdict:
    jitted: list[Any] = []
    before = _confirmed(session)
    with warnings_of_tj() as said:
        try:
            problems = list(subject.run(functools.partial(_noted, jitted)))
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
    reasons = [f.reason for each in jitted for f in tj.stats(each).fallbacks]
    problems += [f"falls back: {r}" for r in reasons if not subject.breaks or PASS in r]
    if subject.breaks:
        reasons.append(LOST)
    if subject.copies:
        reasons.append("graph break: ")
    problems += [f"warns: {w}" for w in dict.fromkeys(said) if not any(r in w for r in reasons)]
    return Verdict(subject, tuple(problems), _confirmed(session) - before)


def _noted(jitted: list[Any], fn: Callable[..., Any], **options: Any) -> Any:
    jitted.append(tj.jit(fn, **options))
    return jitted[-1]


def _confirmed(session: tj.Session) -> int:
    """The count of compiled regions that have run and have not failed."""
    kernels = session.regions.kernels.values()
    return sum(kernel.confirmed and kernel.failure is None for kernel in kernels)
