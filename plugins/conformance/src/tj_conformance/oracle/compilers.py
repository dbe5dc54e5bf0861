"""A command that runs programs by several compilers: ``tj`` and backends of ``torch.compile``."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tj_core as tj
import torch

from tj_conformance.oracle.case import Around, Case, found_in

__all__ = ["run_compilers"]


def run_compilers(
    programs: Mapping[str, Case],
    description: str,
    arguments: Sequence[str] | None = None,
    own: Callable[[Case], Around] = lambda case: contextlib.nullcontext,
) -> int:
    """Run ``programs`` by the compilers in ``arguments``; print for each which differ from eager.

    ``own`` says what enters the modes that options of `tj.jit` ask for: eager and other compilers
    have no such options. Returns the exit status of a command: 1 if ``tj`` differs.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("compilers", nargs="*", default=["tj"])
    wrong = 0
    for name in parser.parse_args(arguments).compilers:
        differ = [case.name for case in programs.values() if _differs(name, case, own(case))]
        wrong += name == "tj" and bool(differ)
        print(f"{name}: {len(differ)} of {len(programs)} differ: {', '.join(differ)}", flush=True)
    return wrong


def _differs(compiler: str, case: Case, own: Around) -> bool:
    torch._dynamo.reset()
    compiled = _compiled(compiler, case)
    within = contextlib.nullcontext if compiler == "tj" else own
    try:
        return bool(found_in(compiled, case, within, own))
    except Exception:  # a compiler that raises differs from eager, whatever it raises
        return True


def _compiled(compiler: str, case: Case) -> Callable[..., Any]:
    program, _ = case.make()
    options = dict(case.options)
    if compiler == "tj":
        jitted: Callable[..., Any] = tj.jit(program, **options)
        return jitted
    options.pop("autocast", None)
    return torch.compile(program, backend=compiler, **options)
