"""Source lines: the place in the user's program that a call comes from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

__all__ = ["Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """The innermost line of the user's program behind a call.

    ``module_path`` is the dotted path of the module that ran (``model.layers.0``), empty for
    functions; ``function`` the name of the Python function that holds the line.
    """

    file: str
    line: int
    text: str = ""
    function: str = ""
    module_path: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        if self.function:
            where += f" in {self.function}"
        return f"{where}: {self.text}" if self.text else where

    def short(self) -> str:
        """One line for a printed trace: file name without folders, so text is the same anywhere."""
        path = f" ({self.module_path})" if self.module_path else ""
        where = f"{PurePath(self.file).name}:{self.line}{path}"
        line = f"{where}: {self.text}" if self.text else where
        return " ".join(line.split())
