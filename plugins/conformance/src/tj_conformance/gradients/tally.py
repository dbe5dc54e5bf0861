"""Figures of whole runs: the samples of ``op_db`` and ``module_db`` whose gradients are eager's.

``python -m tj_conformance.gradients.tally first:float32`` compares the gradients of all samples,
``second:float32`` also those of the gradients, ``gradcheck:float64`` compares with finite
differences, and ``modules`` trains each module for a step; without arguments all of them, in every
data type. ``first:float32:2/8`` is the third of eight parts; ``--samples 3`` takes the first three
of each operation. Prints and exits as `tj_conformance.databases.tally`.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch

from tj_conformance.databases.module_db import modules, run_module
from tj_conformance.databases.tally import Part, Tally, part_of, tell
from tj_conformance.gradients import known
from tj_conformance.gradients.gradients import (
    differentiable_operations,
    run_gradients,
    run_second,
)
from tj_conformance.gradients.numerical import run_gradcheck
from tj_conformance.output import Output, suite_parser

if TYPE_CHECKING:
    from tj_conformance.oracle.result import Result

__all__ = ["CASES", "main", "tally_modules", "tally_operations"]

RUNS: Mapping[str, Callable[..., Result]] = {
    "first": run_gradients,
    "second": run_second,
    "gradcheck": run_gradcheck,
}

CASES = (
    "first:float32",
    "first:float64",
    "first:complex64",
    "first:complex128",
    "second:float32",
    "second:complex64",
    "gradcheck:float64",
    "gradcheck:complex128",
    "modules",
)


def tally_operations(run: str, name: str, part: Part, count: int | None) -> Iterator[str | Tally]:
    """Disagreements as they are found in ``count`` samples per operation, at last the figures."""
    dtype, case = getattr(torch, name), f"{run} {name}"
    tally = Tally(case)
    jit = functools.partial(tj.jit, dynamic=False)
    for op in part.of(differentiable_operations(dtype, second=run == "second")):
        result = RUNS[run](op, dtype, count, jit=jit)
        yield from tally.add(result, known.OPERATIONS, case, complete=count is None)
    yield tally


def tally_modules(part: Part) -> Iterator[str | Tally]:
    """The same for modules: outputs, gradients of arguments and parameters, buffers."""
    tally = Tally("modules")
    for info in part.of(modules()):
        result = run_module(info, training=True)
        yield from tally.add(result, known.MODULES, "train")
    yield tally


def _case(text: str) -> tuple[str, str, Part]:
    """The run, the data type and the part, of an argument of the command."""
    run, _, rest = text.partition(":")
    name, _, part = rest.partition(":") if run in RUNS else ("", "", rest)
    if run not in (*RUNS, "modules"):
        raise argparse.ArgumentTypeError(f"no {run!r}; there are {', '.join((*RUNS, 'modules'))}")
    if run in RUNS and not isinstance(getattr(torch, name, None), torch.dtype):
        raise argparse.ArgumentTypeError(f"{name!r} is no data type, as in {run}:float32")
    return run, name, part_of(part)


def main(arguments: list[str]) -> int:
    """Run what ``arguments`` say; 1 if anything disagrees with the tables."""
    parser = suite_parser("tj_conformance.gradients.tally")
    parser.add_argument("cases", nargs="*", type=_case, metavar="CASE[:K/N]", help=", ".join(CASES))
    parser.add_argument("--samples", type=int)
    given: Any = parser.parse_args(arguments)
    output = Output(given.json)
    for run, name, part in given.cases or map(_case, CASES):
        if run == "modules":
            tell(output, tally_modules(part))
        else:
            tell(output, tally_operations(run, name, part, given.samples))
    return output.end(output.differences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
