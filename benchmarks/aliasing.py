"""Cost per call of writes and aliases: the functional form, and the checks for shared memory.

    python benchmarks/aliasing.py [--rounds N]

Medians of interleaved rounds in one process; quote differences and ratios, not absolute times.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import tj_core as tj
import torch
from timing import interleaved, table
from tj_torch.functionalize.bases import given_bases
from tj_torch.guards.overlap import Group, dispatch_on_aliasing

Arguments = tuple[torch.Tensor, ...]


def _functional(when: str) -> Callable[[Any], Any]:
    session = tj.Session(["torch"], overrides={"torch": {"functional": when}})
    return lambda f: tj.jit(f, session=session)


SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "tj, as acquired": _functional("never"),
    "tj, functional form": _functional("always"),
    "torch.compile(aot_eager)": lambda f: torch.compile(f, backend="aot_eager"),
}


def no_write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y).sin() * x


def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x * y


def write_to_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[0].mul_(2)
    return x * y


def returns_views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.t(), (x + y).view(-1)


def apart() -> Arguments:
    return torch.ones(4, 4), torch.ones(4, 4)


def overlapping() -> Arguments:
    base = torch.ones(5, 4)
    return base[:4], base[1:]


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Arguments]]] = {
    "nothing is written": (no_write, apart),
    "views are returned": (returns_views, apart),
    "an argument is written": (write, apart),
    "a view of an argument is written": (write_to_a_view, apart),
    "an argument is written that overlaps another": (write, overlapping),
}


def run(case: str, rounds: int) -> str:
    """Table of timings of a program."""
    program, arguments = CASES[case]
    calls = {}
    with torch.no_grad():
        for name, system in SYSTEMS.items():
            calls[name] = _call(system(program), arguments())
        return table(case, interleaved(calls, baseline="eager", number=200, rounds=rounds))


def _call(f: Callable[..., Any], arguments: Arguments) -> Callable[[], object]:
    return lambda: f(*arguments)


def sharing(count: int, rounds: int) -> str:
    """Table of the check for shared memory before a program with ``count`` tensors, one written."""
    tensors = [torch.ones(4) for _ in range(count)]

    def nothing(*args: torch.Tensor) -> None:
        pass

    checked = dispatch_on_aliasing(nothing, range(count), [0], lambda found: nothing, nothing)
    calls = {"no check": lambda: nothing(*tensors), "check": lambda: checked(*tensors)}
    title = f"who shares memory, of {count} tensors"
    return table(title, interleaved(calls, baseline="no check", number=2000, rounds=rounds))


def base(rounds: int) -> str:
    """Table of a call with a base: the check for shared memory, the look-up of its program, the
    base.
    """

    def nothing(*args: torch.Tensor) -> None:
        pass

    def with_base(found: tuple[Group, ...]) -> Callable[..., Any]:
        return given_bases(nothing, found, [20])

    run = dispatch_on_aliasing(nothing, range(2), [0], with_base, nothing)
    memory = torch.ones(20)
    views = memory.view(5, 4)[:4], memory.view(5, 4)[1:]
    unrelated = views[0].detach(), views[1]
    calls = {
        "no base": lambda: nothing(*views),
        "of views of one tensor": lambda: run(*views),
        "of memory": lambda: run(*unrelated),
    }
    return table("a base", interleaved(calls, baseline="no base", number=2000, rounds=rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for case in CASES:
        torch._dynamo.reset()
        print(run(case, arguments.rounds), flush=True)
    for count in (2, 10, 50):
        print(sharing(count, arguments.rounds), flush=True)
    print(base(arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
