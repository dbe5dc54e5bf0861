"""Gradients of gradients of made-up programs, compared with eager's.

``python -m tj_conformance.gradients.orders --programs 5000`` prints every program that differs,
then the shortest like it, and at last one line of figures. The exit status is 1 if any differs.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tj_core as tj
import torch

from tj_conformance.gradients.random_programs import Program, programs
from tj_conformance.output import Output, suite_parser
from tj_conformance.programs.modules import module_of
from tj_conformance.seeds import each

__all__ = ["CHUNK", "Figures", "compare", "difference", "main"]

CHUNK = 50
"""Number of programs of one seed."""


@dataclass
class Figures:
    """``programs`` were compared, of which ``raising`` raise in eager and ``different`` differ."""

    programs: int = 0
    raising: int = 0
    different: int = 0

    def __str__(self) -> str:
        return f"{self.programs} programs, {self.different} different; {self.raising} raise"


def difference(
    program: Program, figures: Figures | None = None, jit: Callable[..., Any] = tj.jit
) -> str:
    """Difference of ``program`` between compiled and eager runs; empty without one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, mine = _outcome(program, lambda f: f), _outcome(program, jit)
    figures = figures or Figures()
    figures.programs += 1
    figures.raising += isinstance(theirs, Exception)
    found = _unlike(mine, theirs)
    figures.different += bool(found)
    return found


def _outcome(program: Program, jit: Callable[[Any], Any]) -> list[torch.Tensor | None] | Exception:
    with module_of(str(program)) as module:
        try:
            found: list[torch.Tensor | None] = module.program(jit)
            return found
        except Exception as error:
            return error


WRITTEN = "modified by an inplace operation"
"""Eager's error where a backward needs a value as it was before a write, which tj may have kept."""


def _unlike(mine: Any, theirs: Any) -> str:
    if WRITTEN in str(theirs) and isinstance(mine, list):
        return ""
    if isinstance(theirs, Exception) or isinstance(mine, Exception):
        return "" if type(mine) is type(theirs) else f"{mine!r}, not {theirs!r}"
    if len(mine) != len(theirs):
        return f"{len(mine)} values, not {len(theirs)}"
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if (a is None) is not (b is None):
            return f"value {i} is {a}, not {b}"
        if a is not None and a.requires_grad is not b.requires_grad:
            return f"value {i} requires_grad={a.requires_grad}"
        # Two nodes' gradients are added in another order than those of one graph.
        if a is not None and not torch.allclose(a, b, rtol=1e-8, atol=1e-8, equal_nan=True):
            return f"value {i} is {a}, not {b}"
    return ""


def compare(seed: int, programs_: int, figures: Figures | None = None) -> None:
    """Compare ``programs_`` programs of one seed.

    :raises AssertionError: with the shortest program that differs.
    """

    def see(program: Program) -> None:
        found = difference(program, figures)
        assert not found, f"{found}\n\n{program}"

    each(programs(), see, seed, programs_, shrink=True)
    torch.compiler.reset()


def _differences(seed: int, number: int, figures: Figures) -> Iterator[str]:
    found: list[str] = []

    def see(program: Program) -> None:
        if said := difference(program, figures):
            found.append(f"# {said}\n{program}")

    each(programs(), see, seed, number)
    torch.compiler.reset()
    yield from found
    if found:
        try:
            compare(seed, number)
        except AssertionError as error:
            yield f"# at its shortest:\n{error}"


def main(arguments: Sequence[str]) -> int:
    """Run what ``arguments`` say; 1 if any program differs."""
    parser = suite_parser("tj_conformance.gradients.orders")
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help=f"of the first {CHUNK} programs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new chunk after")
    given_ = parser.parse_args(arguments)
    output, figures, start = Output(given_.json), Figures(), time.monotonic()
    for i in range(0, given_.programs, CHUNK):
        number = min(CHUNK, given_.programs - i)
        for text in _differences(given_.seed + i // CHUNK, number, figures):
            output.difference(text)
        print(f"seed {given_.seed + i // CHUNK} done: {figures}", file=sys.stderr, flush=True)
        if time.monotonic() - start > given_.seconds:
            break
    output.figure(figures, **asdict(figures))
    return output.end(figures.different)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
