"""Descriptions of values as plain data, with all that a caller sees, to compare and print."""

from __future__ import annotations

import collections
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["Descriptions"]


class Descriptions:
    """Descriptions of the values of one run, with a number for each mutable object.

    Two runs agree on identity if they agree on the numbers. Numbered objects are kept alive, so
    that no later object has their address.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[object] = []
        self._open: set[int] = set()

    def look(self, value: Any) -> Any:
        """Describe ``value`` as it is now: nested tuples of text, types first, each object once."""
        self._open.clear()
        return self._of(value)

    def _of(self, value: Any) -> Any:
        name = type(value).__name__
        if isinstance(value, _PLAIN):
            return name, repr(value)  # which has the sign of zero, and tells NaN
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
            return name, value.__name__
        if type(value) in (tuple, torch.Size):
            return name, *map(self._of, value)
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._numbers)
            self._kept.append(value)
        number = self._numbers[id(value)]
        if number in self._open:
            return name, "same as", number
        self._open.add(number)
        return name, number, *self._inside(value)

    def _inside(self, value: Any) -> Iterator[Any]:
        for kind, look in _LOOKS:
            if isinstance(value, kind):
                yield from map(self._of, look(value))
                break
        if not isinstance(value, torch.Tensor):
            yield self._attributes(value)

    def _attributes(self, value: Any) -> Any:
        attributes: dict[str, Any] = getattr(value, "__dict__", {})
        return tuple((key, self._of(item)) for key, item in attributes.items())


_PLAIN = (int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device)


def _of_tensor(t: torch.Tensor) -> tuple[Any, ...]:
    values = t.detach().tolist()
    return str(t.dtype), tuple(t.shape), t.stride(), t.requires_grad, repr(values)


def _of_numpy(generator: Any) -> tuple[Any, ...]:
    state = generator.get_state() if hasattr(generator, "get_state") else None
    return (repr(state if state is not None else generator.bit_generator.state),)


def _numpy_kinds() -> tuple[type, ...]:
    import numpy as np

    return (np.random.Generator, np.random.RandomState)


_LOOKS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (torch.Tensor, _of_tensor),
    (random.Random, lambda r: (hash(r.getstate()),)),
    (collections.deque, lambda d: (d.maxlen, *d)),
    (collections.defaultdict, lambda d: (d.default_factory, *(e for kv in d.items() for e in kv))),
    (dict, lambda d: tuple(e for item in d.items() for e in item)),
    ((set, frozenset), lambda s: tuple(sorted(s, key=repr))),
    ((list, tuple), tuple),
    (_numpy_kinds(), _of_numpy),
)
"""Functions that describe the content of a value, by type; the first that fits is used."""
