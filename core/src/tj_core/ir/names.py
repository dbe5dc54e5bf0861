"""Names that are free in a program."""

from __future__ import annotations

import re

__all__ = ["Namer"]


class Namer:
    """Gives names that are free in a program, always the same for the same requests."""

    __slots__ = ("_last", "_taken")

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._last: dict[str, int] = {}

    def __call__(self, wish: str) -> str:
        """``wish`` if it is free and an identifier, else ``wish_1``, ``wish_2``, ..."""
        base = re.sub(r"\W", "_", wish)
        if not base or base[0].isdigit() or _RESERVED.fullmatch(base):
            base = "v" + base
        name, n = base, self._last.get(base, 0)
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._last[base] = n
        self._taken.add(name)
        return name


# Formal names of bodies, and words that Python or the printed program itself uses.
_RESERVED = re.compile(
    r"_[\d_]*|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|"
    r"False|finally|for|from|global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|"
    r"True|try|while|with|yield|slice|complex|float|device|dtype"
)
