"""Proxies: immutable stand-ins for the values of a program, and the metadata they carry."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, TypeVar

from tj_core.errors import ParseError
from tj_core.ir.sizes import same_stride, symbol_and_number
from tj_core.ir.tags import NO_TAGS, TagSet

__all__ = [
    "DType",
    "Device",
    "Dim",
    "NumberProxy",
    "OpaqueProxy",
    "Proxy",
    "SubclassInfo",
    "SymDim",
    "TensorProxy",
    "contiguous_strides",
    "is_contiguous",
    "is_subclass",
    "may_overlap",
    "requires_grad",
    "size_expressions",
    "size_hints",
    "strides_overlap",
    "without_grad",
]

_PREFIXES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
_KINDS = {"f": "float", "bf": "float", "i": "int", "u": "uint", "c": "complex"}
_SPELLED = {short: long for long, short in _PREFIXES.items()}


@dataclass(frozen=True, slots=True)
class DType:
    """A data type: its name, the width of one element in bits, and its kind.

    The set is open: ``kind`` is ``float``, ``complex``, ``int``, ``uint``, ``bool``, or a word of a
    plugin's own.
    """

    name: str
    bits: int
    kind: str

    def __str__(self) -> str:
        """The short form of printed traces: ``f32``, ``bf16``, ``f8_e4m3fn``, ``bool``."""
        return _short(self)

    @classmethod
    def parse(cls, text: str) -> DType:
        """The data type that prints as ``text``.

        :raises ParseError: if ``text`` is not the print of one.
        """
        if text == "bool":
            return cls("bool", 8, "bool")
        if match := re.fullmatch(r"(f|bf|i|u|c)(\d+)(\w*)", text):
            letter, bits, rest = match.groups()
            return cls(_SPELLED[letter] + bits + rest, int(bits), _KINDS[letter])
        if match := re.fullmatch(r"(\w+)/(\d+)/(\w+)", text):
            return cls(match[1], int(match[2]), match[3])
        raise ParseError(f"{text!r} is not a data type")


@functools.cache
def _short(dtype: DType) -> str:
    if dtype == DType("bool", 8, "bool"):
        return dtype.name
    match = re.fullmatch(r"([a-z]+?)(\d+)(\w*)", dtype.name)
    prefix = _PREFIXES.get(match[1]) if match else None
    if match and prefix and (int(match[2]), _KINDS[prefix]) == (dtype.bits, dtype.kind):
        return prefix + match[2] + match[3]
    return f"{dtype.name}/{dtype.bits}/{dtype.kind}"


@dataclass(frozen=True, slots=True)
class Device:
    """A device: its type and, where there can be several, its index."""

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> Device:
        """The device that prints as ``text``."""
        kind, _, index = text.partition(":")
        return cls(kind, int(index) if index else None)


@dataclass(frozen=True, slots=True)
class SymDim:
    """A size known only at run time, named by its expression (``s0``, ``2*s0``; no brackets).

    ``hint`` is the size in the call that was traced (None: it depends on data). ``guard`` is the
    frontend's callback for a pass that must decide on the size: called with the assumed value, it
    records a guard. ``settled`` returns the value that the guards so far imply, or the expression
    of an equal size, else None. None of the three takes part in equality.
    """

    name: str
    hint: int | None = field(default=None, compare=False)
    guard: Callable[[int], None] | None = field(default=None, compare=False, repr=False)
    settled: Callable[[], int | str | None] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name


Dim: TypeAlias = int | SymDim


@dataclass(frozen=True, slots=True)
class SubclassInfo:
    """A tensor subclass in metadata: its type, its inner tensors and its opaque context.

    ``type`` is the qualified name; ``inner`` the attributes ``__tensor_flatten__`` names with
    their proxies (each called like its attribute, without tags), ``context`` a comparable
    description of the rest. ``state`` is the argument that rebuilds a tensor of the type from
    its inner tensors; None if unknown, as in a program that was read from text; not compared.
    """

    type: str
    inner: tuple[tuple[str, TensorProxy], ...] = ()
    context: str = ""
    state: object = field(default=None, compare=False, repr=False)


P = TypeVar("P", bound="Proxy")


@functools.cache
def _meta(kind: Any) -> Callable[[Any], Any]:
    """A function that reads the compared fields of a proxy, without name and tags."""
    compared = (f.name for f in fields(kind) if f.compare)
    names = [name for name in compared if name not in ("name", "tags")]
    return operator.attrgetter(*names) if names else lambda _: None


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


@dataclass(frozen=True, slots=True)
class Proxy:
    """A named value of a program. Use a subclass; equality is by name, metadata and tags."""

    name: str
    tags: TagSet = field(default=NO_TAGS, kw_only=True)

    def replace(self: P, **changes: object) -> P:
        """A copy with ``changes`` applied.

        :raises TypeError: if a name in ``changes`` is no field.
        """
        # Not `dataclasses.replace`, which takes twice as long: passes do this for every value.
        kind: Any = type(self)
        made: P = object.__new__(kind)
        for name in _names(kind):
            value = changes.pop(name) if name in changes else getattr(self, name)
            object.__setattr__(made, name, value)  # it is frozen
        if changes:
            raise TypeError(f"{kind.__name__} has no field {min(changes)!r}")
        return made

    def same_meta(self, other: Proxy) -> bool:
        """Compare the two proxies without their names and tags."""
        meta = _meta(type(self))  # type: ignore[arg-type]  # a class is hashable
        return type(self) is type(other) and meta(self) == meta(other)


@dataclass(frozen=True, slots=True)
class TensorProxy(Proxy):
    """A tensor. ``strides`` count elements, and are empty unless the layout is strided.

    ``flags`` holds further bits of the tensor, sorted: ``conj``, ``neg``.
    """

    shape: tuple[Dim, ...] = ()
    strides: tuple[Dim, ...] = ()
    dtype: DType = DType("float32", 32, "float")
    device: Device = Device("cpu")
    requires_grad: bool = False
    layout: str = "strided"
    flags: tuple[str, ...] = ()
    subclass: SubclassInfo | None = None

    def map_symbols(self, size: Callable[[SymDim], Dim]) -> TensorProxy:
        """A copy with ``size`` applied to each symbolic size and stride, also of inner tensors."""

        def dims(sizes: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return tuple(size(n) if isinstance(n, SymDim) else n for n in sizes)

        info = self.subclass
        if info is not None:
            inner = tuple((name, p.map_symbols(size)) for name, p in info.inner)
            info = replace(info, inner=inner)
        return self.replace(shape=dims(self.shape), strides=dims(self.strides), subclass=info)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class NumberProxy(Proxy):
    """A Python number known only at run time. ``expr`` is its symbolic expression, if any."""

    kind: str = "int"
    expr: str = ""
    hint: int | float | complex | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class OpaqueProxy(Proxy):
    """A value the trace passes around without looking inside, known by its type's name."""

    type: str = "object"


def contiguous_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """Row-major strides of ``shape``, in elements; None if a symbolic size is a factor of one.

    Sizes of 0 count as 1, as in PyTorch.
    """
    if any(isinstance(dim, SymDim) for dim in shape[1:]):
        return None
    strides: list[Dim] = []
    step = 1
    for dim in reversed(shape):
        strides.append(step)
        step *= max(dim, 1) if isinstance(dim, int) else 1
    return tuple(reversed(strides))


def is_contiguous(p: TensorProxy) -> bool:
    """Test if ``p`` is row-major for all values of its symbolic sizes.

    As in PyTorch, strides of sizes of 1 do not count, and a tensor without elements is contiguous.
    False for layouts without strides.
    """
    if p.layout != "strided":
        return False
    if 0 in p.shape:
        return True
    plain = contiguous_strides(p.shape)
    if plain is not None:  # without symbols among the factors, which are costly to compare
        found = zip(p.shape, p.strides, plain, strict=True)
        return all(size == 1 or stride == step for size, stride, step in found)
    factors: list[Dim] = []
    for size, stride in zip(reversed(p.shape), reversed(p.strides), strict=True):
        if size == 1:
            continue
        if not same_stride("*".join(f"({n})" for n in factors) or "1", str(stride)):
            return False
        factors.append(size)
    return True


def is_subclass(value: object) -> bool:
    """Test if ``value`` is a tensor of a subclass that wraps other tensors."""
    return isinstance(value, TensorProxy) and value.subclass is not None


def size_expressions(p: object) -> Iterator[tuple[str, Any]]:
    """The expressions over symbols in the metadata of ``p``, each with its value when traced.

    A tensor has those of its sizes, strides and inner tensors, in this order; a number may have
    one; an opaque value has none.
    """
    if isinstance(p, TensorProxy):
        yield from ((n.name, n.hint) for n in (*p.shape, *p.strides) if isinstance(n, SymDim))
        if p.subclass is not None:
            for _, part in p.subclass.inner:
                yield from size_expressions(part)
    elif isinstance(p, NumberProxy) and p.expr:
        yield p.expr, p.hint


def may_overlap(p: TensorProxy) -> bool:
    """Test if two indices of ``p`` may be one place in memory, for any values of symbolic sizes.

    True where a stride is a symbol.
    """
    return strides_overlap(p.shape, p.strides)


def strides_overlap(shape: Iterable[Dim], strides: Iterable[Dim]) -> bool:
    """Test if two indices of a tensor may be one place in memory, as `may_overlap` does.

    :param shape: its sizes; a dimension without elements counts as one with an element.
    :param strides: in elements, one for each size.
    """
    dims = [(t, n) for t, n in zip(strides, shape, strict=True) if n not in (0, 1)]
    known = sorted(((t, n) for t, n in dims if isinstance(t, int)), key=lambda dim: dim[0])
    reach = 1
    for place, (stride, size) in enumerate(known, 1):
        if stride < reach:
            return True
        if isinstance(size, int):
            reach += stride * (size - 1)
        elif place < len(dims):
            return True
    return len(known) < len(dims)


def size_hints(values: Iterable[object]) -> dict[str, int]:
    """The traced value of each symbol that is a size in the metadata of ``values``.

    It is one by itself, or in a sum with a number.
    """
    found = {text: hint for p in values for text, hint in size_expressions(p) if hint is not None}
    sums = ((symbol_and_number(text), hint) for text, hint in found.items())
    solved = {s[0]: int(hint) - s[1] for s, hint in sums if s is not None}
    return solved | {text: int(hint) for text, hint in found.items() if text.isidentifier()}


def requires_grad(value: object) -> bool:
    """Test if ``value`` is a tensor that autograd tracks."""
    return isinstance(value, TensorProxy) and value.requires_grad


def without_grad(p: Proxy) -> Proxy:
    """``p`` with ``requires_grad`` off."""
    return p.replace(requires_grad=False) if isinstance(p, TensorProxy) and p.requires_grad else p
