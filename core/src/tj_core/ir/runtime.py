"""What a dialect knows of values at run time, by which what kernels do is held against traces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tj_core.ir.proxy import Proxy
from tj_core.ir.symbol import Constant, Context

__all__ = ["RuntimeValues"]


@dataclass(frozen=True, slots=True)
class RuntimeValues:
    """What a dialect knows of its values at run time.

    ``observe`` says the metadata of a value, None for one that is not the dialect's; all others are
    asked of its own values only. ``memory`` identifies the memory that a value is in; None for one
    without any. ``mark`` is something that compares equal until somebody writes to the value.
    ``copy`` is a copy in memory of its own, with the same metadata. ``differs`` says in what the
    first value, which has the metadata of the second, is not equal to it within the tolerance of
    their data type; None if it is. Each of the given number of operations, one after the other, may
    have rounded. ``plain``, if given, is any value as kernels get it: in the same
    memory, and not part of differentiation. ``example``, if given, makes a value with the metadata
    of a proxy, whose sizes are numbers, always the same one; None where it knows no such values.
    ``laid_out``, if given, is a value with the given strides: itself, or a copy.

    ``text`` and ``of_text``, both or none, are for finished programs that are kept on disk: the
    text that a constant of a program is made of again, None for one that nothing but itself can
    stand for, as it may be written; and the value of such a text. ``records``, if given, says of a
    context whether calls in it become part of differentiation.
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
