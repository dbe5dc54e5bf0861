"""Generated functions: the one place where source text becomes a function."""

from __future__ import annotations

import itertools
import linecache
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["define"]

_serial = itertools.count()


def define(source: str, name: str, scope: dict[str, Any], title: str = "tj") -> Callable[..., Any]:
    """The function ``name`` that ``source`` defines, with the globals ``scope``.

    Its file, ``<title number>``, is listed for tracebacks and debuggers for as long as any of its
    code exists. The name is not left in ``scope``, so that the function is freed with its last
    reference, without the cycle collector.
    """
    file = f"<{title} {next(_serial)}>"
    code = compile(source, file, "exec")
    exec(code, scope)
    function: Callable[..., Any] = scope.pop(name)
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    _unlist_with(list(_inside(code)), file)
    return function


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of the functions that ``code`` defines, those inside of others too."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _inside(constant)


def _unlist_with(codes: list[types.CodeType], file: str) -> None:
    """Remove ``file`` when the last of ``codes`` is gone: frames hold theirs."""
    left = len(codes)

    def gone() -> None:
        nonlocal left
        left -= 1
        if not left:
            linecache.cache.pop(file, None)

    for code in codes:
        weakref.finalize(code, gone).atexit = False
