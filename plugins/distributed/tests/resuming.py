"""The examples of distributed training, for each process of a group: from a checkpoint on."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

from torch import distributed

EXAMPLES = Path(__file__).parents[3] / "examples" / "distributed"


def example(name: str, folder: str) -> list[str]:
    """The losses of three steps, and of a job that goes on after two of them."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        training: Any = importlib.import_module("training")
        program: Any = importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))
    one, two = Path(folder, "one"), Path(folder, "two")

    def train(folder: Path) -> str:
        same_data = name == "tensor_parallel"
        training.train(program.parallel, folder, 3, 2, same_data, lambda moment, step: None)
        distributed.barrier()
        return (folder / "losses.txt").read_text()

    first = train(one)
    if distributed.get_rank() == 0:
        shutil.copytree(one / "step-2", two / "step-2")
        shutil.copytree(one / "step-2", two / "step-4")
        (two / "step-4" / ".metadata").unlink()  # as a job leaves it that died in between
        (two / "losses.txt").write_text("".join(first.splitlines(keepends=True)[:2]))
    distributed.barrier()
    return [first, train(two)]
