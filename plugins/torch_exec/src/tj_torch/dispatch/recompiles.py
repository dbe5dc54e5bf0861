"""Recompilations: the guard that failed, in words, and their limit for values of one object."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["Explain", "changed", "recurs"]

Explain = Callable[[dict[str, Any]], str | None]
"""Text of the first of an entry's guards that fails on a frame's locals; None if all hold."""


def recurs(entries: Iterable[Explain], frame: dict[str, Any], limit: int) -> str | None:
    """Reason not to compile for ``frame``, None if there is none.

    Compilation stops once ``limit`` of the ``entries`` fail on the value of the same object.
    """
    asked = list(entries)
    # Checking the guards of all entries takes time; fewer cannot reach the limit.
    if len(asked) < limit:
        return None
    objects = Counter(filter(None, (_compared(explain(frame) or "") for explain in asked)))
    for name, count in objects.most_common(1):
        if count >= limit:
            return (
                f"{count} programs were compiled for values of {name}, and more are not; calls "
                "with other values run as they are (see tj.guards(f); the limit is [tool.tj] "
                "recompile_limit)"
            )
    return None


def changed(guard: str, frame: dict[str, Any]) -> str:
    """The failing ``guard`` in words, with the old and the new value where it compares one.

    Dynamo's guards on tensors say in words what they expected, and what there is.
    """
    text = _local(next(_beginnings(guard), guard).strip())
    name = _compared(guard)
    if name is None:
        return text
    old = text.partition(" == ")[2] or "empty"
    try:
        new = repr(_value(ast.parse(name, mode="eval").body, frame))
    except Exception:  # an expression over what only Dynamo's own scope has
        return text
    return f"{_local(name)} was {old}, is {new[:_LONGEST]}"


def _value(node: ast.expr, frame: dict[str, Any]) -> Any:
    """The value of an expression over the locals of a frame, which guards call ``L``."""
    if isinstance(node, ast.Name) and node.id == "L":
        return frame
    if isinstance(node, ast.Subscript):
        return _value(node.value, frame)[ast.literal_eval(node.slice)]
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), node.attr)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "len":
        return len(_value(node.args[0], frame))
    raise ValueError(ast.unparse(node))


_LONGEST = 80
"""Most characters of a value's text."""


def _local(name: str) -> str:
    """The expression for the user: without the dict of Dynamo's locals."""
    return re.sub(r"\bL\['(\w+)'\]", r"\1", name)


@functools.lru_cache(256)  # each call beyond the limit asks again
def _compared(guard: str) -> str | None:
    """Expression that ``guard`` compares with a constant; None for other guards."""
    if guard.startswith("not "):  # guard on an empty container; its siblings compare len()
        return f"len({next(_beginnings(guard.removeprefix('not ')))})"
    name, _, rest = guard.partition(" == ")
    return name if any(map(_is_literal, _beginnings(rest))) else None


def _beginnings(text: str) -> Iterator[str]:
    """Prefixes of ``text`` that may be the guard, without the source line and hint that follow."""
    for found in re.finditer(r"\s+(?:# |\(HINT)|$", text):
        yield text[: found.start()]


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True
