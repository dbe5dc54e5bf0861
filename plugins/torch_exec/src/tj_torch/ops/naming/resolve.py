"""Find the function that a symbol names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tj_core.extend import FUNCTIONAL, Symbol
from tj_core.internal import INVERSE

from tj_torch.ops.naming.paths import walk
from tj_torch.runtime.functional import Functional, Inverse

__all__ = ["ROOTS", "resolve", "root"]

ROOTS: Mapping[str, str] = {
    "aten": "torch.ops.aten",
    "builtins": "builtins",
    "operator": "operator",
    "tj": "tj_torch.glue",
    "torch": "torch",
}
"""Dotted path of each namespace with a dialect."""

FORMS: Mapping[str, Callable[..., Any]] = {FUNCTIONAL: Functional, INVERSE: Inverse}
"""Wrapper of a function, by variant of its symbol."""


def root(namespace: str) -> str:
    """Dotted path of ``namespace``; one without a dialect is an importable package."""
    return ROOTS.get(namespace, namespace)


def resolve(symbol: Symbol) -> Callable[..., Any]:
    """Callable that ``symbol`` names.

    :raises LookupError: if it names none.
    """
    if symbol.variant in FORMS:
        return _form(symbol.variant, resolve(symbol.base))
    found = walk(f"{root(symbol.namespace)}.{symbol.path}")
    if not callable(found):
        raise LookupError(symbol.qualname)
    return found  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=1024)
def _form(variant: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The form of ``function``, one object for each: expansions are kept by the function's id."""
    made: Callable[..., Any] = FORMS[variant](function)
    return made
