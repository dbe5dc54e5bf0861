"""Compile recorded regions with nvFuser for a device that does not exist.

``python scripts/nvfuser/compile.py FOLDER [--json FILE] [--seconds N] [--only TEXT]`` takes the
definitions in a folder (see definitions.py). nvFuser segments and schedules each and generates CUDA
for it, and NVRTC compiles that; no kernel runs. It needs g++, a CUDA build of PyTorch with the
headers of its CUDA version, and the wheel of nvFuser for that PyTorch. The script fails unless all
definitions compile.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pretended

if TYPE_CHECKING:
    from definitions import Kept

COMPILED = "compiled"
EVALUATED = "run by PyTorch's kernels"
LATE = "not done in time"

NO_DRIVER = "Found no NVIDIA driver"
"""Error of the allocation of results, which comes after compilation."""


def outcome(definition: Kept) -> str:
    """Compile ``definition``; return `COMPILED` or the error."""
    import torch
    from definitions import reason
    from tensors import Pretended, Pretending

    inputs = [Pretended(x) if isinstance(x, torch.Tensor) else x for x in definition.tensors()]
    try:
        fusion = definition.defined()
        with Pretending(), contextlib.redirect_stdout(io.StringIO()):
            # One segment after the other: the message is then that of the one that fails.
            fusion.execute(inputs, device=0, _disable_options=["parallel_compile"])
    except Exception as error:
        text = reason(error)
        return COMPILED if NO_DRIVER in text else f"{type(error).__name__}: {text}"
    return EVALUATED


def apart(definition: Kept, seconds: float) -> str:
    """Run `outcome` in a process of its own, which is killed after ``seconds``."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(outcome(definition)))
    process.start()
    theirs.close()
    try:
        found: str = mine.recv() if mine.poll(seconds) else LATE
    except EOFError:
        process.join()
        found = f"the process ended with {process.exitcode}"
    process.kill()
    process.join()
    return found


def compiled(definitions: list[Kept], seconds: float) -> list[dict[str, Any]]:
    """Compile all definitions, and print each outcome as it is known."""
    rows = []
    for n, definition in enumerate(definitions, 1):
        start = time.monotonic()
        found = apart(definition, seconds)
        took = time.monotonic() - start
        print(
            f"{n} of {len(definitions)}: {definition.name}, {definition.lines} lines, "
            f"{took:.1f} s: {found[:300]}",
            flush=True,
        )
        known = {"name": definition.name, "test": definition.test, "lines": definition.lines}
        rows.append(known | {"seconds": round(took, 1), "outcome": found})
    return rows


def main() -> int:
    """Compile all, and count the outcomes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=600, help="for one definition")
    parser.add_argument("--only", default="", help="part of the names of tests to take")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as built:
        pretended.load(Path(built))
    import torch
    from definitions import kept

    definitions = [k for k in kept(options.folder) if options.only in k.test]
    rows = compiled([k for k in definitions if k.inputs is not None], options.seconds)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    counts = Counter(row["outcome"][:120] for row in rows)
    print(f"PyTorch {torch.__version__}, {len(rows)} definitions, in {total(rows):.0f} s")
    print(f"{len(definitions) - len(rows)} others have never run")
    for text, count in counts.most_common():
        print(f"    {count} {text}")
    return not rows or not set(counts) <= {COMPILED, EVALUATED}


def total(rows: list[dict[str, Any]]) -> float:
    """Seconds of all definitions."""
    return sum(row["seconds"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
