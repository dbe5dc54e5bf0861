"""The command: ``python -m tj_conformance.autocast [COMPILERS...]``, all programs by each of them.

Compilers are ``tj`` and backends of ``torch.compile``; the exit status is 1 if ``tj`` differs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import tj_core as tj
import torch

from tj_conformance.autocast.case import Case, found_in
from tj_conformance.autocast.programs import PROGRAMS

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser("tj_conformance.autocast", description=__doc__)
    parser.add_argument("compilers", nargs="*", default=["tj"])
    wrong = 0
    for name in parser.parse_args(arguments).compilers:
        differ = [case.name for case in PROGRAMS.values() if _differs(name, case)]
        wrong += name == "tj" and bool(differ)
        print(f"{name}: {len(differ)} of {len(PROGRAMS)} differ: {', '.join(differ)}", flush=True)
    return wrong


def _differs(compiler: str, case: Case) -> bool:
    torch._dynamo.reset()
    compiled, option = _compiled(compiler, case)
    try:
        return bool(found_in(compiled, case, option))
    except Exception:  # a compiler that raises differs from eager, whatever it raises
        return True


def _compiled(compiler: str, case: Case) -> tuple[Callable[..., Any], torch.dtype | None]:
    """``case`` as ``compiler`` runs it, and the autocast to enter around, if it has no option."""
    program, _ = case.make()
    options = dict(case.options)
    if compiler == "tj":
        return tj.jit(program, **options), None
    option = options.pop("autocast", None)
    return torch.compile(program, backend=compiler, **options), option


if __name__ == "__main__":
    raise SystemExit(main())
