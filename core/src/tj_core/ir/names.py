"""Names: of values, which users choose, and tj's own, which no value of a program has.

The two differ in form. A body's inputs are ``a0, a1, ...`` (`formal_input`), and all other names of
tj's own begin with an underscore: values that a body defines (`formal_value`), constants without a
spelling in Python, and variables of generated code. A `Namer` gives values no such name.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterable

__all__ = ["Namer", "formal_index", "formal_input", "formal_value", "is_own"]


def formal_input(index: int) -> str:
    """The formal name of the argument at flat ``index``."""
    return f"a{index}"


def formal_index(name: str) -> int:
    """The flat index behind the formal name of an argument."""
    return int(name[1:])


def formal_value(index: int) -> str:
    """The formal name of the ``index``-th value that a body defines."""
    return f"_{index}"


def is_own(name: str) -> bool:
    """Tell whether a name is tj's own by its form."""
    return name.startswith("_") or _FORMAL_INPUT.fullmatch(name) is not None


class Namer:
    """Gives names that are free in a program, always the same for the same requests."""

    __slots__ = ("_last", "_taken")

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}

    def __call__(self, wish: str) -> str:
        """A value's name: ``wish`` if that is free and can be one, else ``wish_1`` and so on."""
        base = _identifier(wish)
        return self.own(f"v{base}" if is_own(base) or base in _RESERVED else base)

    def constant(self, wish: str) -> str:
        """A name, with an underscore, for a constant without a spelling in Python."""
        return self.own(f"_{_identifier(wish.lstrip('_') or 'constant')}")

    def own(self, base: str) -> str:
        """A free name of tj's own in generated code: the identifier ``base``, or ``base_1``..."""
        name, n = base, self._last.get(base, 0)
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._last[base] = n
        self._taken.add(name)
        return name


def _identifier(wish: str) -> str:
    """``wish`` as an identifier: NFKC-normalised, as Python does; other characters replaced."""
    if wish.isascii() and wish.isidentifier() and not keyword.iskeyword(wish):
        return wish  # as nearly all are: passes ask for thousands
    base = re.sub(r"\W", "_", unicodedata.normalize("NFKC", wish))
    if not f"v{base}".isidentifier():
        base = "".join(c if f"v{c}".isidentifier() else "_" for c in base)
    return base if base.isidentifier() and not keyword.iskeyword(base) else f"v{base}"


_FORMAL_INPUT = re.compile(r"a\d+")

_RESERVED = frozenset(
    {"slice", "complex", "float", "device", "dtype", "getattr", "range", "int", "bool"}
)
"""Words that the printed program itself uses."""
