"""Definitions that tests of tj-nvfuser left in a folder, one per file.

``TJ_NVFUSER_DEFINITIONS=FOLDER tox run -e all -- plugins/nvfuser_exec/tests`` makes the tests write
the files. A file also has the inputs of the definition's first run, and the name of the test.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nvfuser_direct
import torch

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Kept", "kept", "reason"]


@dataclass(frozen=True)
class Kept:
    """A definition. ``inputs`` are numbers, and (data type, sizes, strides) for tensors."""

    name: str
    text: str
    test: str
    inputs: tuple[Any, ...] | None

    @property
    def lines(self) -> int:
        """Number of lines of the definition."""
        return sum(line.startswith("    ") for line in self.text.splitlines())

    def defined(self) -> Any:
        """Define nvFuser's fusion.

        :raises Exception: if nvFuser refuses the definition.
        """
        scope = scope_of(self.text)
        with contextlib.redirect_stdout(io.StringIO()), nvfuser_direct.FusionDefinition() as fusion:
            scope["nvfuser_fusion"](fusion)
        return fusion

    def tensors(self, whole: int | None = None) -> list[Any]:
        """Make inputs like those of its first run: numbers, and small tensors on the CPU.

        :param whole: value of all integers; by default they are 0 or 1.
        """
        torch.manual_seed(0)
        return [made(*x, whole) if isinstance(x, tuple) else x for x in self.inputs or ()]


def kept(folder: Path) -> list[Kept]:
    """Read the definitions in ``folder``, sorted by length."""
    found = []
    for file in sorted(folder.glob("*.py")):
        text = file.read_text("utf-8")
        scope = scope_of(text)
        found.append(Kept(file.stem, text, scope.get("TEST", ""), scope.get("INPUTS")))
    return sorted(found, key=lambda k: k.lines)


def scope_of(text: str) -> dict[str, Any]:
    """Run ``text``, and return the names that it defines."""
    scope: dict[str, Any] = {
        "DataType": nvfuser_direct.DataType,
        "FusionDefinition": nvfuser_direct.FusionDefinition,
    }
    exec(text, scope)
    return scope


def made(dtype: str, sizes: list[int], strides: list[int], whole: int | None) -> torch.Tensor:
    """Make a tensor; its integers are 0 or 1, valid indices into most dimensions, or ``whole``."""
    low, high = (0, 2) if whole is None else (whole, whole + 1)
    kind = getattr(torch, dtype)
    kept = [1 if step == 0 else n for n, step in zip(sizes, strides, strict=True)]
    values = torch.rand(kept) if kind.is_floating_point else torch.randint(low, high, kept)
    return torch.empty_strided(kept, strides, dtype=kind).copy_(values).expand(sizes)


def reason(error: Exception) -> str:
    """Message of an nvFuser error, without its stack."""
    return " ".join(str(error).partition("Exception raised from")[0].split())
