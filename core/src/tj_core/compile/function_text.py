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


def define(source: str, name: str, scope: dict[str, Any], title: str = "tj") -> Callable[..., Any]:
    """The function ``name`` that ``source`` defines, with the globals ``scope``.

    The text is in `linecache`, for tracebacks and debuggers, as file ``<title number>`` for as long
    as any of its code objects exists. The name is not left in ``scope``: without this reference
    cycle, the function is freed with its last reference.
    """
    file = f"<{title} {next(_serial)}>"
    code = compile(source, file, "exec")
    exec(code, scope)
    function: Callable[..., Any] = scope.pop(name)
    # None for the time of change: `linecache.checkcache` leaves such files alone.
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    _unlist_with(list(_inside(code)), file)
    return function


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
