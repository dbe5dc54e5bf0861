"""The functions by which a dialect inspects values at run time, to check kernels against traces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tj_core.ir.proxy import Proxy
    from tj_core.ir.symbol import Constant, Context

__all__ = ["RuntimeValues"]


@dataclass(frozen=True, slots=True)
class RuntimeValues:
    """Functions on a dialect's values at run time.

    ``observe`` returns the metadata of a value, None for another dialect's value; the others are
    called on values of the dialect only. ``memory`` identifies the memory of a value; None if it
    has none. ``mark`` returns a token that compares equal until the value is written. ``copy``
    returns a copy in memory of its own, with the same metadata. ``differs`` describes how the
    first value differs from the second, of the same metadata, beyond the tolerance of their data
    type; None if they agree. Its third argument is the number of operations, one after the other,
    that may each have rounded. ``plain``, if given, returns any value as kernels get it: in the
    same memory, without requiring a gradient. ``example``, if given, makes a value with the
    metadata of a proxy whose sizes are numbers, deterministically; None if it cannot.
    ``laid_out``, if given, returns the value with the given strides: itself, or a copy.

    ``text`` and ``of_text``, both or none, serve finished programs that are kept on disk:
    ``text`` serialises a constant of a program, None for one that cannot be replaced by an equal
    one since it may be written; ``of_text`` restores the value. ``records``, if given, tells if
    autograd records calls in a context.

    For programs that compare values (``check=3``), if given: ``generators`` returns a token that
    compares equal until global generators of random numbers are drawn from; ``draws`` runs a
    function, and tells if this thread draws from them meanwhile, as far as the dialect sees it;
    ``other`` returns a copy of a value with other elements, None if there is none; ``derived`` the
    results of a function for arguments, by position and by name, a tangent for each tensor among
    them (None for one without a gradient), and the gradients of arguments by their `id`.
    """

    observe: Callable[[Any], Proxy | None]
    memory: Callable[[Any], Hashable | None]
    mark: Callable[[Any], object]
    copy: Callable[[Any], Any]
    differs: Callable[[Any, Any, int], str | None]
    plain: Callable[[Any], Any] | None = None
    example: Callable[[Proxy], Any] | None = None
    laid_out: Callable[[Any, Sequence[int]], Any] | None = None
    text: Callable[[Constant], str | None] | None = None
    of_text: Callable[[str], Any] | None = None
    records: Callable[[Context], bool] | None = None
    generators: Callable[[], object] | None = None
    other: Callable[[Any], Any] | None = None
    derived: Callable[..., tuple[Any, Sequence[Any], Mapping[int, Any]]] | None = None
    draws: Callable[[Callable[[], Any]], bool] | None = None
