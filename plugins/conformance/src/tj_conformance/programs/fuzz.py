"""Made-up programs in numbers, compared with eager: the figures of a whole run.

``python -m tj_conformance.programs.fuzz --frontend fx --programs 50000`` prints every program that
differs, as a test, and at last one line of figures; those so far go to standard error. The exit
status is 1 if any differs.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from hypothesis import reject

from tj_conformance.output import Output, suite_parser
from tj_conformance.programs.texts import TextProgram, programs, run_text
from tj_conformance.programs.tracer import Untraceable, traced
from tj_conformance.seeds import each

if TYPE_CHECKING:
    import argparse

    from tj_conformance.programs.aliasing import Jit, Report

__all__ = ["CHUNK", "Figures", "chunks", "compare_programs", "main", "through_fx"]

CHUNK = 250
"""Number of programs of one seed: smaller chunks have more different programs."""


@dataclass
class Figures:
    """Counts over many programs.

    ``programs`` were compared, of which ``different`` differ from eager, ``raising`` raise in eager
    and ``falling_back`` were not captured whole; ``untraceable`` were skipped. Of the compiled
    ``entries``, ``with_backward`` have traced gradients, and ``with_bases`` are programs for
    arguments that share memory; ``declined`` counts transforms' reasons for a decline.
    """

    programs: int = 0
    different: int = 0
    raising: int = 0
    falling_back: int = 0
    untraceable: int = 0
    entries: int = 0
    with_backward: int = 0
    with_bases: int = 0
    declined: Counter[str] = field(default_factory=Counter)

    def add(self, report: Report) -> None:
        """Count a program."""
        self.programs += 1
        self.different += not report.ok
        self.raising += any(report.raised)
        self.falling_back += bool(report.fallbacks)
        self.entries += len(report.compilations)
        self.with_backward += sum("backward" in c.others for c in report.compilations)
        for compilation in report.compilations:
            self.with_bases += any(name.startswith("shared") for name in compilation.others)
            self.declined.update(answer.reason for _, answer in compilation.declined[:1])

    def __str__(self) -> str:
        return (
            f"{self.programs} programs, {self.different} different; {self.raising} raise, "
            f"{self.falling_back} fall back; {self.untraceable} more were not traced; "
            f"{self.entries} entries, {self.with_backward} with a backward trace, "
            f"{self.with_bases} with bases, "
            f"{sum(self.declined.values())} declined"
        )


def chunks(count: int) -> list[tuple[int, int]]:
    """The seed, from 0 on, and the size of each chunk of ``count`` programs."""
    return [(i // CHUNK, min(CHUNK, count - i)) for i in range(0, count, CHUNK)]


def compare_programs(
    jit: Jit, *, seed: int, count: int, figures: Figures | None = None, **options: Any
) -> None:
    """Compare ``count`` made-up programs with eager; ``options`` are `check`'s.

    A program for which ``jit`` raises `Untraceable` does not count.

    :raises AssertionError: with the shortest program that differs.
    """
    figures = figures or Figures()

    def compare(program: TextProgram) -> None:
        report = _compared(program, jit, figures, options)
        if not report.ok:  # no `assert`, whose message pytest lays out anew
            raise AssertionError(f"differs from eager:\n{report}\n\n{program}")

    each(programs(), compare, seed, count, shrink=True)


def _compared(program: TextProgram, jit: Jit, figures: Figures, options: Any) -> Report:
    try:
        report = run_text(program, jit, **options)
    except Untraceable:
        figures.untraceable += 1
        reject()
    figures.add(report)
    return report


def through_fx(session: tj.Session | None = None) -> Jit:
    """Make a ``jit`` that compiles the program's FX graph.

    A graph has no ``with``: after an exception inside of one, in eager too, grad mode stays as it
    was set.
    """

    def compile(fn: Any) -> Any:
        jitted = tj.jit(traced(fn), session=session, frontend="fx")

        def run(*args: Any) -> Any:
            enabled = torch.is_grad_enabled()
            try:
                return jitted(*args)
            except Exception:
                torch.set_grad_enabled(enabled)
                raise

        run.__tj__ = jitted.__tj__  # type: ignore[attr-defined]
        return run

    return compile


def _through(frontend: str | None, session: tj.Session) -> Jit:
    if frontend == "fx":
        return through_fx(session)
    return lambda fn: tj.jit(fn, session=session, frontend=frontend)


def _differences(jit: Jit, seed: int, count: int, figures: Figures, options: Any) -> Iterator[str]:
    """Each program of a chunk that differs, and then the shortest like the first."""
    found: list[str] = []

    def see(program: TextProgram) -> None:
        report = _compared(program, jit, figures, options)
        if not report.ok:
            found.append(f"# {report}\n{program}")

    each(programs(), see, seed, count)
    yield from found
    if found:
        try:
            compare_programs(jit, seed=seed, count=count, **options)
        except AssertionError as error:
            yield f"# at its shortest:\n{error}"


def main(arguments: Sequence[str]) -> int:
    """Run what ``arguments`` say; 1 if any program differs."""
    given = _parser().parse_args(arguments)
    plugins = given.plugins.split(",")
    session = tj.Session(plugins, overrides={"torch": {"functional": given.functional}})
    jit = _through(given.frontend, session)
    # Autograd then sees other calls than the user's, and other saved values.
    rewritten = given.functional == "always" or "autograd" in plugins
    options = {"lenient": True, "ignore": ("grad_fn",)} if rewritten else {}
    output, figures, start = Output(given.json), Figures(), time.monotonic()
    for seed, count in chunks(given.programs):
        for text in _differences(jit, given.seed + seed, count, figures, options):
            output.difference(text)
        print(f"seed {given.seed + seed} done: {figures}", file=sys.stderr, flush=True)
        torch.compiler.reset()
        if time.monotonic() - start > given.seconds:
            break
    for reason, count in figures.declined.most_common():
        output.say(f"{count:6} {reason}")
    said = f"{given.frontend}, {given.plugins}, functional {given.functional}: {figures}"
    output.figure(said, **asdict(figures))
    return output.end(figures.different)


def _parser() -> argparse.ArgumentParser:
    parser = suite_parser("tj_conformance.programs.fuzz")
    parser.add_argument("--frontend", choices=("dynamo", "fx"), default="dynamo")
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help=f"of the first {CHUNK} programs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new chunk after")
    parser.add_argument("--plugins", default="torch", help="torch or torch,autograd")
    parser.add_argument("--functional", choices=("auto", "always", "never"), default="auto")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
