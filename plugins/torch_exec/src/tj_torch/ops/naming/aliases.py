"""Functions that PyTorch documents as aliases of one operation."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tj_torch.ops.naming.paths import public_names, walk
from tj_torch.ops.naming.schemas import is_composite, same_operation

__all__ = ["Aliases", "aliases"]

_DOCUMENTED = re.compile(r"[Aa]lias (?:for|of|to) :(?:func|meth):`~?(torch\.[\w.]+)")
# Aliases by name and definition that the documentation does not mention.
_UNDOCUMENTED = {"torch.special.gammaln": "torch.lgamma"}


class Aliases:
    """Canonical function of each set of aliases.

    The documentation proposes a pair, and the operators' schemas confirm it: the other must accept
    every call of the one with the same meaning. Both must be compiled functions, which are named
    after their operators. The operator with kernels of its own is canonical or, where neither has
    any, the one that the documentation names.
    """

    def __init__(self, names: Mapping[Callable[..., Any], str]) -> None:
        self._target: dict[Callable[..., Any], Callable[..., Any]] = {}
        # Of 2,000 functions some sixty mention an alias; the others cost no Python call here.
        mentions = [
            function
            for function, name in names.items()
            if isinstance(function, types.BuiltinFunctionType)
            and (name in _UNDOCUMENTED or "lias " in (function.__doc__ or ""))
        ]
        for function in sorted(mentions, key=names.__getitem__):
            other = _documented(function, names[function])
            if isinstance(other, types.BuiltinFunctionType) and other is not function:
                self._add(function, other)

    def _add(self, function: Callable[..., Any], other: Callable[..., Any]) -> None:
        first, second = function.__name__, other.__name__
        if not is_composite(first) and is_composite(second):
            function, other = other, function
        self._target.setdefault(function, other)

    def canonical(
        self, function: Callable[..., Any], keywords: Collection[str] = ()
    ) -> Callable[..., Any]:
        """Canonical function for a call of ``function`` with ``keywords``."""
        seen = {function}
        # Two functions may each be documented as an alias of the other.
        while (target := self._target.get(function)) is not None and target not in seen:
            if not same_operation(function.__name__, target.__name__, keywords):
                break
            seen.add(target)
            function = target
        return function

    def canonical_method(self, name: str, base: Callable[..., Any] | None) -> str:
        """Canonical name of the in-place method ``name``, whose function is ``base``."""
        if base is None:
            return name
        other = f"{self.canonical(base).__name__}_"
        return other if same_operation(name, other) else name


@functools.cache
def aliases() -> Aliases:
    """The aliases among PyTorch's functions; once per process, as `public_names` are."""
    return Aliases(public_names())


def _documented(function: Callable[..., Any], name: str) -> Any:
    match = _DOCUMENTED.search(function.__doc__ or "")
    path = match[1] if match else _UNDOCUMENTED.get(name)
    try:
        return None if path is None else walk(path)
    except LookupError:
        return None
