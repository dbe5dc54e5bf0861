"""Programs of this repository's tests as families of programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from tj_conformance.installed.programs import REWRITTEN
from tj_conformance.installed.subject import Jit, Subject
from tj_conformance.oracle.case import Case, Verdict, evaluate
from tj_conformance.programs import cases

from tj_suites.autocast.case import evaluate as evaluate_autocast
from tj_suites.autocast.lists import listed
from tj_suites.autocast.programs import PROGRAMS as AUTOCAST
from tj_suites.packages import PACKAGES, Network, train_twins
from tj_suites.subclasses.programs import PROGRAMS as SUBCLASSES

__all__ = ["aliasing", "autocast", "packages", "subclasses"]


def aliasing(found: Iterable[tuple[cases.Case, str]]) -> Iterator[Subject]:
    """Programs of the tables in test files, each with the kinds of tensors in ``found``."""
    for case, kind in found:
        run = functools.partial(_case, case, kind)
        breaks = kind in case.breaks | case.raises  # what raises may be captured in part
        yield Subject("aliasing", f"{case.name}-{kind}", run, breaks)


def _case(case: cases.Case, kind: str, jit: Jit) -> Iterator[str]:
    try:
        cases.run_case(case, kind, jit=jit, **REWRITTEN)
    except AssertionError as error:
        yield str(error)


def subclasses() -> Iterator[Subject]:
    """Programs of tensor subclasses."""
    yield from _cases("subclasses", SUBCLASSES, evaluate)


def autocast() -> Iterator[Subject]:
    """Programs under autocast, and the operations of PyTorch's lists in two data types."""
    lists = {
        f"{dtype}.{name}": case
        for dtype in (torch.bfloat16, torch.float16)
        for name, case in listed(dtype).items()
    }
    yield from _cases("autocast", {**AUTOCAST, **lists}, evaluate_autocast)


def _cases(
    family: str, found: Mapping[str, Case], evaluated: Callable[[Case, Jit], Verdict]
) -> Iterator[Subject]:
    for name, case in found.items():
        run = functools.partial(_evaluated, case, evaluated)
        yield Subject(family, name, run, bool(case.falls_back))


def _evaluated(case: Case, evaluated: Callable[[Case, Jit], Verdict], jit: Jit) -> list[str]:
    return [str(d) for d in evaluated(case, jit).differences]


def packages() -> Iterator[Subject]:
    """Networks of packages that others wrote, trained for two steps."""
    for package in PACKAGES:
        for network in package.networks:
            run = functools.partial(_network, network)
            name = f"{package.name} {network.name}"
            yield Subject("packages", name, run, bool(network.breaks))


def _network(network: Network, jit: Jit) -> Iterator[str]:
    report = train_twins(network, jit, "adam")
    yield from report.problems
    if unknown := [w for w in report.tj_warnings if not any(b in w for b in network.breaks)]:
        yield f"warns: {unknown}"
