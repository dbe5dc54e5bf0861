"""Programs that are generated, found or written by hand as families of programs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from tj_conformance.data import programs as of_data
from tj_conformance.dtypes import programs as of_dtypes
from tj_conformance.dtypes import running as of_mixed
from tj_conformance.gradients import orders as of_orders
from tj_conformance.gradients import own, random_programs
from tj_conformance.installed.subject import Jit, Subject
from tj_conformance.meaning.programs import PROGRAMS as SCRIPTS
from tj_conformance.meaning.scripts import Script, agreement
from tj_conformance.models import MODELS, step
from tj_conformance.oracle.compare import differences
from tj_conformance.oracle.nearness import doubled, judged
from tj_conformance.programs.findings import FOUND
from tj_conformance.programs.fuzz import CHUNK
from tj_conformance.programs.observations import SeenProgram, differences_seen
from tj_conformance.programs.texts import TextProgram, programs, run_text
from tj_conformance.seeds import collected, varied
from tj_conformance.states import texts as of_states
from tj_conformance.states.running import compare as compare_states
from tj_conformance.ways import texts as of_ways
from tj_conformance.ways.running import WAYS

__all__ = [
    "REWRITTEN",
    "data",
    "dtypes",
    "found",
    "generated",
    "meaning",
    "models",
    "orders",
    "own_backwards",
    "seen",
    "states",
    "ways",
]

REWRITTEN = {"lenient": True, "ignore": ("grad_fn",)}
"""Options of `check` for gradients that are traces: other nodes of autograd, other saved values."""


def generated(seed: int, count: int = CHUNK) -> Iterator[Subject]:
    """Made-up programs; the same ``seed`` makes the same ones."""
    for number, program in enumerate(collected(programs(), seed, count)):
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


def seen(family: str, found: Iterable[SeenProgram]) -> Iterator[Subject]:
    """Programs of which a caller sees more than results, over several calls."""
    for program in found:
        yield Subject(family, program.name, functools.partial(_seen, program), breaks=True)


def _seen(program: SeenProgram, jit: Jit) -> Iterator[str]:
    yield from map(str, differences_seen(program, jit))


def meaning() -> Iterator[Subject]:
    """Programs whose meaning is Python's."""
    for name, script in SCRIPTS.items():
        run = functools.partial(_meaning, script)
        yield Subject("meaning", name, run, breaks=True)


def _meaning(script: Script, jit: Jit) -> Iterator[str]:
    found = agreement(script, jit)
    if found.differences:
        yield f"{found}\n\n{script}"


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
    for number, program in enumerate(varied(random_programs.programs(), seed, count)):
        run = functools.partial(_order, program)
        yield Subject("orders", f"{seed}.{number}", run)


def _order(program: Any, jit: Jit) -> Iterator[str]:
    if said := of_orders.difference(program, jit=jit):
        yield f"{said}\n\n{program}"


def ways(seed: int, count: int = of_orders.CHUNK) -> Iterator[Subject]:
    """Made-up programs, each in one of the ways in which a user runs programs."""
    names = itertools.cycle(WAYS)
    for number, program in enumerate(varied(of_ways.programs(), seed, count)):
        run = functools.partial(_way, replace(program, way=next(names)))
        yield Subject("ways", f"{seed}.{number}", run)


def _way(program: of_ways.Program, jit: Jit) -> Iterator[str]:
    report = of_ways.run(program, jit)
    if not report.ok:
        yield f"{report}\n\n{program}"


def states(seed: int, count: int = of_states.CHUNK) -> Iterator[Subject]:
    """Made-up programs whose state changes between calls."""
    for number in range(seed * count, (seed + 1) * count):
        run = functools.partial(_states, str(of_states.made(number)))
        yield Subject("states", str(number), run, breaks=True, copies=True)


def _states(text: str, jit: Jit) -> Iterator[str]:
    for said in compare_states(text, jit):
        yield f"{said}\n\n{text}"


def data(seed: int, count: int = of_orders.CHUNK) -> Iterator[Subject]:
    """Made-up programs whose sizes and control flow depend on data."""
    for number in range(count):
        run = functools.partial(_data, of_data.made(seed, number))
        yield Subject("data", f"{seed}.{number}", run, breaks=True)


def _data(program: of_data.Program, jit: Jit) -> Iterator[str]:
    report = of_data.run(program, jit)
    if not report.ok:
        yield f"{report}\n\n{program}"
    yield from (f"falls back: {reason}\n\n{program}" for reason in of_data.unexpected(report))


def dtypes(seed: int, count: int = of_orders.CHUNK) -> Iterator[Subject]:
    """Made-up programs of mixed data types, numbers, special values and layouts."""
    for number, program in enumerate(of_dtypes.programs(seed, count)):
        run = functools.partial(_mixed, program)
        yield Subject("dtypes", f"{seed}.{number}", run, breaks=True)


def _mixed(program: of_dtypes.Program, jit: Jit) -> Iterator[str]:
    found = list(of_mixed.run(program, jit))
    yield from found
    if found:
        yield str(program)


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
