"""What symbols and contexts are in Python: dialects, and the rules of table ``context``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tj_core.contract.fields import FUNCTION, NAME, OPTIONAL_FUNCTION, check_fields, of
from tj_core.ir.runtime import RuntimeValues
from tj_core.ir.symbol import Symbol
from tj_core.ir.trace import BoundSymbol

__all__ = ["ContextSpeller", "Dialect", "Resetting"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the symbols of one namespace mean as Python.

    ``prelude`` are the import lines that printed programs start with, so that a symbol's printed
    name evaluates; ``resolve`` returns the callable behind a symbol and raises `LookupError` for
    an unknown one. ``entry``, if given, is asked for each call in a program that is to run: for
    another callable that does the same with arguments of these kinds, and takes less time; or None.
    ``values``, if given, is what the dialect knows of values at run time: what kernels do is held
    against the trace by it. ``checks_writes``, if given, says whether a call may raise because of
    how its arguments were mutated before, so that it stays in a program that mutates though nobody
    needs its results. ``known``, if given, is asked for an unknown symbol that a plugin has a rule
    for: the qualified names among which the right one must be; none, if it may yet come to exist.

    ``spelled``, if given, is asked for symbols that an executor claims: the qualified name that
    their calls have in programs, if that is another one; else None.

    ``fingerprint``, if given, is for finished programs that are kept on disk: it says as text what
    the meaning of symbols depends on, beside the plugin's code: versions of libraries, the machine,
    settings of the process; None where that cannot be said, as of operations that the program
    itself defines. Programs with symbols of a dialect without one are not kept.
    """

    namespace: str
    prelude: tuple[str, ...]
    resolve: Callable[[Symbol], Callable[..., Any]]
    entry: Callable[[BoundSymbol], Callable[..., Any] | None] | None = None
    values: RuntimeValues | None = None
    checks_writes: Callable[[BoundSymbol], bool] | None = None
    known: Callable[[Symbol], Collection[str]] | None = None
    spelled: Callable[[Symbol], str | None] | None = None
    fingerprint: Callable[[Collection[Symbol]], str | None] | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            namespace=NAME,
            prelude=of(tuple),
            resolve=FUNCTION,
            entry=OPTIONAL_FUNCTION,
            values=of(RuntimeValues, optional=True),
            checks_writes=OPTIONAL_FUNCTION,
            known=OPTIONAL_FUNCTION,
            spelled=OPTIONAL_FUNCTION,
            fingerprint=OPTIONAL_FUNCTION,
        )


@dataclass(frozen=True, slots=True)
class Resetting:
    """A `ContextSpeller` whose context manager also sets other keys, which must be set again.

    ``torch.inference_mode()`` sets grad mode, so its speller ``resets`` the key ``grad``.
    """

    spell: Callable[[Any], str]
    resets: tuple[str, ...]

    def __call__(self, value: Any) -> str:
        """The text for ``value``."""
        return self.spell(value)


ContextSpeller = Callable[[Any], str]
"""Turns a context key's value into the Python expression of a context manager."""
