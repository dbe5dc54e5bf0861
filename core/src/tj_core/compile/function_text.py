"""Generated functions, made of source text in this one place."""

from __future__ import annotations

import itertools
import linecache
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["define"]

# Names of files of generated code: tracebacks of the process tell them apart in one table.
_serial = itertools.count()


ROOM = 4096
"""Values in the frame of a function with room: twice the size of a chunk of Python's stack."""


def define(
    source: str, name: str, scope: dict[str, Any], title: str = "tj", *, room: bool = False
) -> Callable[..., Any]:
    """The function ``name`` that ``source`` defines, with the globals ``scope``.

    The text is in `linecache`, for tracebacks and debuggers, as file ``<title number>`` for as long
    as any of its code objects exists. The name is not left in ``scope``: without this reference
    cycle, the function is freed with its last reference.

    From Python 3.11 on, frames stand in chunks of 16 KiB. Where the frame of a program ends near
    the end of a chunk, each call in it may map memory for the next chunk and unmap it again, which
    takes 8 us. With ``room`` the function has a chunk of its own, with space for what it calls:
    that is mapped once in each of its calls.
    """
    file = f"<{title} {next(_serial)}>"
    code = compile(source, file, "exec")
    exec(code, scope)
    function: Any = scope.pop(name)
    if room:
        function.__code__ = function.__code__.replace(co_stacksize=ROOM)
    # None for the time of change: `linecache.checkcache` leaves such files alone.
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    _unlist_with([function.__code__, *_inside(function.__code__)], file)
    return function  # type: ignore[no-any-return]


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code objects of all functions that ``code`` defines, nested ones included."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _inside(constant)


def _unlist_with(codes: list[types.CodeType], file: str) -> None:
    """Remove ``file`` from `linecache` with the last of ``codes``, which running frames hold."""
    left = len(codes)

    def gone() -> None:
        nonlocal left
        left -= 1
        if not left:
            linecache.cache.pop(file, None)

    for code in codes:
        weakref.finalize(code, gone).atexit = False  # `linecache` ends with the process
