"""Dialects, which map symbols to Python callables, and the rules of table ``context``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.contract.beside import Beside
from tj_core.contract.fields import FUNCTION, NAME, OPTIONAL_FUNCTION, check_fields, of
from tj_core.ir.runtime import RuntimeValues

if TYPE_CHECKING:
    from tj_core.ir.symbol import Symbol
    from tj_core.ir.trace import BoundSymbol

__all__ = ["ContextSpeller", "Dialect", "Resetting"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The meaning of one namespace's symbols in Python.

    ``prelude`` are the import lines that printed programs start with, so that a symbol's printed
    name evaluates; ``resolve`` returns the callable behind a symbol and raises `LookupError` for
    an unknown one. ``entry``, if given, is called for each call in a program that is to run, and
    returns an equivalent callable that takes less time for such arguments, or None. ``values``, if
    given, inspects values at run time, to check kernels against the trace. ``checks_writes``, if
    given, returns True for a call that may raise because of earlier mutations of its arguments: in
    a program that mutates, such a call is kept even if its results are unused. ``known``, if given,
    is called for an unknown symbol that a plugin has a rule for, and returns the qualified names
    that exist; none, if the symbol may be defined later.

    ``spelled``, if given, is called for symbols that an executor claims, and returns the qualified
    name of their calls in programs if it differs, else None.

    ``fingerprint``, if given, is for finished programs that are kept on disk: a text of everything
    beside the plugin's code that the meaning of symbols depends on: versions of libraries, the
    machine, settings of the process; None if unknown, as for operations that the program itself
    defines. Programs with symbols of a dialect without a fingerprint are not kept.

    ``beside``, if given, has contexts for a thread that compiles beside the program.
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
    beside: Beside | None = None

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
            beside=of(Beside, optional=True),
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
