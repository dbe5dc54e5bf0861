"""Schemas of PyTorch's operators: parameters, and the calls that an overload accepts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tj_torch.torch_private.runtime import has_kernel
from tj_torch.torch_private.runtime import schemas as schemas_of

__all__ = ["Overload", "Parameter", "is_composite", "overload", "overloads", "same_operation"]

# Names from NumPy that PyTorch's C++ argument parser also accepts.
_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim", "x2": "other"}

_INTS = re.compile(r"(Optional\[)?List\[int\]\]?")
_NEVER_INTS = re.compile(
    r"(Optional\[)?(ScalarType|Layout|Device|MemoryFormat|str|List\[Tensor\])\]?"
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """Parameter of an overload; ``size`` is the length to which one integer is repeated."""

    name: str
    type: str
    keyword_only: bool
    required: bool
    default: Any
    size: int | None

    @property
    def ints(self) -> bool:
        """Test for a list of integers, without symbols."""
        return _INTS.fullmatch(self.type) is not None

    @property
    def open_ints(self) -> bool:
        """Test for a list of integers that does not accept a single integer."""
        return self.size is None and self.ints

    @property
    def takes_int(self) -> bool:
        """Test for a parameter that accepts an integer."""
        return not self.open_ints and _NEVER_INTS.fullmatch(self.type) is None

    def like(self, other: Parameter) -> bool:
        """Test for the same type, default and kind of parameter; names may differ."""
        mine = (self.type, self.keyword_only, self.required, self.size)
        theirs = (other.type, other.keyword_only, other.required, other.size)
        return mine == theirs and repr(self.default) == repr(other.default)


@dataclass(frozen=True, slots=True)
class Overload:
    """Parameters of one overload, in order."""

    parameters: tuple[Parameter, ...]

    @property
    def positional(self) -> tuple[Parameter, ...]:
        """Parameters that may be given by position."""
        return tuple(p for p in self.parameters if not p.keyword_only)

    def index_of_self(self) -> int | None:
        """Position of the tensor ``self``, None if the overload is no method."""
        for index, parameter in enumerate(self.positional):
            if parameter.name == "self" and parameter.type == "Tensor":
                return index
        return None

    def without(self, index: int) -> Overload:
        """The overload without the parameter at ``index``, as a method is called."""
        return Overload(self.parameters[:index] + self.parameters[index + 1 :])

    def accepts(self, ints: Sequence[bool], keywords: Collection[str]) -> bool:
        """Test if a call fits; ``ints`` has, per positional argument, whether it is an integer."""
        free = self.positional
        if len(ints) > len(free):
            return False
        if not all(p.takes_int for p, is_int in zip(free, ints, strict=False) if is_int):
            return False
        given = {p.name for p in free[: len(ints)]}
        named = {_NUMPY_NAMES.get(k, k) for k in keywords}
        known = {p.name for p in self.parameters} - given
        required = {p.name for p in self.parameters if p.required} - given
        return required <= named <= known

    def takes_sizes(self, index: int) -> bool:
        """Test if the parameter at position ``index`` is a list of any number of integers."""
        free = self.positional
        return index < len(free) and free[index].open_ints

    def gathers(self, keywords: Collection[str]) -> bool:
        """Test if PyTorch's parser accepts the integers of its only positional list one by one."""
        free = self.positional
        return len(free) == 1 and free[0].open_ints and self.accepts((False,), keywords)


def overloads(op: str) -> tuple[Overload, ...]:
    """Overloads of ``aten::op`` with tensors in their signatures; () if there is no such op."""
    schemas = schemas_of(f"aten::{op}")
    return tuple(overload(schema) for schema in schemas if "Tensor" in str(schema))


def overload(schema: Any) -> Overload:
    """The overload with PyTorch's ``schema``."""
    return Overload(
        tuple(
            Parameter(
                a.name,
                str(a.real_type),
                a.kwarg_only,
                not a.has_default_value(),
                a.default_value if a.has_default_value() else None,
                a.N,
            )
            for a in schema.arguments
        )
    )


def same_operation(op: str, other: str, keywords: Collection[str] = ()) -> bool:
    """Test if each call of ``aten::op`` with ``keywords`` could be a call of ``aten::other``.

    Compares types and defaults, and the names of parameters given by name.
    """
    mine, theirs = overloads(op), overloads(other)
    return bool(mine) and all(any(_same(a, b, keywords) for b in theirs) for a in mine)


def _same(a: Overload, b: Overload, keywords: Collection[str]) -> bool:
    pairs = list(_zipped(a, b))
    return all(
        x is not None
        and y is not None
        and x.like(y)
        and (x.name == y.name or not ({x.name, y.name} & set(keywords) or x.keyword_only))
        for x, y in pairs
    )


def _zipped(a: Overload, b: Overload) -> Iterator[tuple[Parameter | None, Parameter | None]]:
    for i in range(max(len(a.parameters), len(b.parameters))):
        x = a.parameters[i] if i < len(a.parameters) else None
        y = b.parameters[i] if i < len(b.parameters) else None
        yield x, y


def is_composite(op: str) -> bool:
    """Test for an operator ``aten::op`` that only calls others (CompositeImplicitAutograd)."""
    key = "CompositeImplicitAutograd"
    try:
        return bool(has_kernel(f"aten::{op}", key))
    except RuntimeError:
        return False
