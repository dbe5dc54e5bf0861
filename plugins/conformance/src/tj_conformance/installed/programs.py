"""Programs that are generated, found or written by hand as families of programs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from tj_conformance.autocast.case import evaluate as evaluate_autocast
from tj_conformance.autocast.lists import listed
from tj_conformance.autocast.programs import PROGRAMS as AUTOCAST
from tj_conformance.gradients import orders as of_orders
from tj_conformance.gradients import own
from tj_conformance.installed.subject import Jit, Subject
from tj_conformance.models import MODELS, step
from tj_conformance.oracle.case import Case, Verdict, evaluate
from tj_conformance.oracle.compare import differences
from tj_conformance.oracle.nearness import doubled, judged
from tj_conformance.packages import PACKAGES, Network, train_twins
from tj_conformance.programs import cases
from tj_conformance.programs.findings import FOUND
from tj_conformance.programs.fuzz import CHUNK, collected
from tj_conformance.programs.texts import TextProgram, run_text
from tj_conformance.subclasses.programs import PROGRAMS as SUBCLASSES

__all__ = [
    "aliasing",
    "autocast",
    "found",
    "generated",
    "models",
    "orders",
    "own_backwards",
    "packages",
    "subclasses",
]

REWRITTEN = {"lenient": True, "ignore": ("grad_fn",)}
"""Options of `check` for gradients that are traces: other nodes of autograd, other saved values."""


def aliasing(found: Iterable[tuple[cases.Case, str]]) -> Iterator[Subject]:
    """Programs of the tables in test files, each with the kinds of tensors in ``found``."""
    for case, kind in found:
        run = functools.partial(_case, case, kind)
        yield Subject("aliasing", f"{case.name}-{kind}", run, kind in case.breaks)


def _case(case: cases.Case, kind: str, jit: Jit) -> Iterator[str]:
    try:
        cases.run_case(case, kind, jit=jit, **REWRITTEN)
    except AssertionError as error:
        yield str(error)


def generated(seed: int, count: int = CHUNK) -> Iterator[Subject]:
    """Made-up programs; the same ``seed`` makes the same ones."""
    for number, program in enumerate(collected(seed, count)):
        yield _text("generated", f"{seed}.{number}", program)


def found() -> Iterator[Subject]:
    """Made-up programs that were once found to differ."""
    for name, program in FOUND.items():
        yield _text("found", name, program)


def _text(family: str, name: str, program: TextProgram) -> Subject:
    # What is not captured whole is not known before: see `Figures.falling_back`.
    return Subject(family, name, functools.partial(_run_text, program), breaks=True)


def _run_text(program: TextProgram, jit: Jit) -> Iterator[str]:
    report = run_text(program, jit, **REWRITTEN)
    if not report.ok:
        yield f"{report}\n\n{program}"


def own_backwards(numbers: Collection[int] = range(1000)) -> Iterator[Subject]:
    """Functions and operators with a backward of the user's own."""
    for number in numbers:
        run = functools.partial(_own, number)
        yield Subject("own_backwards", str(number), run, breaks=True)


def _own(number: int, jit: Jit) -> Iterator[str]:
    found = own.compare(number, jit=jit)
    if found is not None and number not in own.KNOWN:
        yield found


def orders(seed: int, count: int = of_orders.CHUNK) -> Iterator[Subject]:
    """Made-up programs that differentiate up to three times, in double precision."""
    for number, program in enumerate(of_orders.collected(seed, count)):
        run = functools.partial(_order, program)
        yield Subject("orders", f"{seed}.{number}", run)


def _order(program: Any, jit: Jit) -> Iterator[str]:
    if said := of_orders.difference(program, jit=jit):
        yield f"{said}\n\n{program}"


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


def models() -> Iterator[Subject]:
    """Models of transformers, trained for two steps and evaluated."""
    for name in MODELS:
        for mode in ("train", "eval"):
            yield Subject("models", f"{name}, {mode}", functools.partial(_model, name, mode))


def _model(name: str, mode: str, jit: Jit) -> Iterator[str]:
    model = MODELS[name].build().train(mode == "train")
    batch = MODELS[name].batch()
    step(model, model, batch, 0)  # transformers prepares a model then
    jitted = jit(model)
    for seed in range(2):
        expected = step(model, model, batch, seed)
        got = step(model, jitted, batch, seed)

        def exact(seed: int = seed) -> Any:
            wide = MODELS[name].build().train(mode == "train").double()
            return step(wide, wide, doubled(batch), seed)

        yield from map(str, judged(differences(got, expected), got, expected, exact))


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
