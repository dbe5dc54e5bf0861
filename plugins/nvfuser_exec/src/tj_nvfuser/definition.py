"""A definition for nvFuser, recorded as the text of a Python program.

The text defines a region on any object with the methods of nvFuser's ``FusionDefinition``. Values
have data types and shapes here, so that a definition can be made without nvFuser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from tj_core.extend import Dim, NumberProxy, ParseError, SymDim, TensorProxy, evaluate_size

from tj_nvfuser.layouts import dense_order, layout_of
from tj_nvfuser.refusal import Refused, refuse

if TYPE_CHECKING:
    from tj_core.internal import SizePlace

__all__ = [
    "COMMON",
    "COMPUTE",
    "DTYPES",
    "Definition",
    "Meta",
    "Number",
    "Seeds",
    "Text",
    "Value",
    "dtype_of",
    "same_shape",
]

DTYPES: Mapping[str, str] = {
    "float64": "Double",
    "float32": "Float",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Int",
    "int32": "Int32",
    "bool": "Bool",
    "uint64": "UInt64",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
}
"""nvFuser's names of data types."""

COMMON = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "bool")
"""Data types that every operation takes."""

COMPUTE: Mapping[str, str] = {name: name for name in DTYPES.values()} | {
    "Half": "Float",
    "BFloat16": "Float",
    "Float8_e4m3fn": "Float",
    "Float8_e5m2": "Float",
}
"""Data type in which values are computed: many operations have no kernel for 16 or 8 bits."""

WHOLE8 = "nvFuser has no casts between integers and float8"

REDUCTIONS = ("sum", "prod", "max", "min", "var_mean")

MOST_CHAINED = 4
"""Reductions in sequence in one segment, at most: those of two norms."""

# The next one would be 480, whose bits are NaN's; 464, halfway, is rounded to even.
LARGEST_ROUNDED = 464.0
"""Largest number that rounds to 448, the largest float8_e4m3fn."""

OVERFLOWS = bool(torch.tensor(1e9).to(torch.float8_e4m3fn).float().isnan())
"""True if this PyTorch converts larger numbers to NaN; some versions do not."""

Meta: TypeAlias = "tuple[str, Sequence[Dim]]"
"""Metadata of a result: nvFuser's name of its data type, and its shape."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the definition."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


class Text(str):
    """An argument that is an expression of the program."""


@dataclass(frozen=True, slots=True)
class Number:
    """An argument that is a number at run time, with its expression."""

    name: str
    size: SymDim


@dataclass(frozen=True, slots=True)
class Seeds:
    """State of random numbers: one input of the region, two of the definition."""

    seed: Text
    offset: Text


@dataclass
class Definition:
    """The text so far.

    ``places`` maps a symbol to its place in the inputs; None for a definition that will not run.
    ``device`` is the type of device that it runs on. ``reshaped`` maps the name of a reshape to its
    source, ``chains`` the name of a value to the number of reductions before it, ``cut`` the name
    of a value to its name in the segment that it begins, ``upcasts`` the name of a cast from 16
    bits to its source. ``used`` are the names of those that some operation takes.
    """

    places: Mapping[str, SizePlace] | None = None
    device: str = "cuda"
    inputs: list[Value | Number | Seeds] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    sizes: dict[str, Text] = field(default_factory=dict)
    reshaped: dict[str, Value] = field(default_factory=dict)
    chains: dict[str, int] = field(default_factory=dict)
    cut: dict[str, str] = field(default_factory=dict)
    upcasts: dict[str, Value] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        """The program: a function of a ``FusionDefinition``."""
        head = "def nvfuser_fusion(fd: FusionDefinition) -> None:"
        return "\n".join([head, *(f"    {line}" for line in self.lines), ""])

    def line(self, text: str, *args: Any, **kwargs: Any) -> None:
        """Append a call."""
        named = (f"{key}={_argument(value)}" for key, value in kwargs.items())
        self.lines.append(f"{text}({', '.join([*map(_argument, args), *named])})")

    # -------------------------------------------------------------------- what goes in and out

    def tensor(self, p: TensorProxy) -> Value:
        """Add a tensor input.

        :raises Refused: if nvFuser has no such tensors.
        """
        layout = layout_of(p)
        value = Value(f"T{len(self.inputs)}", dtype_of(p), p.shape)
        self.line(
            f"{value.name} = fd.define_tensor",
            # -1: the size is the input's, so that one definition serves all from 2 on.
            shape=[n if isinstance(n, int) else -1 for n in p.shape],
            contiguity=list(layout.contiguity),
            dtype=_dtype(value.dtype),
            is_cpu=p.device.type != self.device,  # a number: others on the CPU are refused
            stride_order=list(layout.order),
        )
        self.inputs.append(value)
        return value

    def number(self, p: NumberProxy) -> Number:
        """Add a number input."""
        value = Number(f"N{len(self.inputs)}", SymDim(p.expr, _whole(p.hint)))
        self.line(f"{value.name} = fd.define_scalar", None, dtype=_dtype("Int"))
        self.inputs.append(value)
        return value

    def seeds(self) -> Seeds:
        """Add an input that is a state of random numbers."""
        place = len(self.inputs)
        found = Seeds(Text(f"N{place}_seed"), Text(f"N{place}_offset"))
        for name in (found.seed, found.offset):
            self.line(f"{name} = fd.define_scalar", None, dtype=_dtype("Int"))
        self.inputs.append(found)
        return found

    def output(self, value: Value, p: TensorProxy) -> None:
        """Return ``value`` with the strides of ``p``.

        :raises Refused: if these have gaps.
        """
        if p.ndim > 1:  # said always: else nvFuser may choose the order of the inputs
            order = list(dense_order(p))
            value = self.op("stride_order", (value.dtype, value.shape), value, stride_order=order)
        self.line("fd.add_output", self.upcast_again(value))

    # -------------------------------------------------------------------- operations

    def op(self, name: str, meta: Meta, *args: Any, **kwargs: Any) -> Value:
        """Append ``fd.ops.NAME``, whose result has metadata ``meta``."""
        (value,) = self.ops(name, [meta], *args, **kwargs)
        return value

    def ops(self, name: str, metas: Sequence[Meta], *args: Any, **kwargs: Any) -> list[Value]:
        """Append ``fd.ops.NAME`` with several results."""
        args = tuple(self.upcast_again(self.segmented(x, name in REDUCTIONS)) for x in args)
        place = len(self.lines)
        names = [f"t{place}"] if len(metas) == 1 else [f"t{place}_{i}" for i in range(len(metas))]
        self.line(f"{', '.join(names)} = fd.ops.{name}", *args, **kwargs)
        chained = max((self.chains.get(x.name, 0) for x in _values(args)), default=0)
        self.chains |= dict.fromkeys(names, chained + (name in REDUCTIONS))
        return [Value(n, dtype, tuple(s)) for n, (dtype, s) in zip(names, metas, strict=True)]

    def segmented(self, x: Any, reduced: bool) -> Any:
        """An argument; it begins a segment if it is to be reduced after `MOST_CHAINED` reductions.

        nvFuser would find segments by itself, in a time that each further norm multiplies.
        """
        if isinstance(x, list | tuple):
            return [self.segmented(v, reduced) for v in x]
        if not isinstance(x, Value):
            return x
        if reduced and x.name not in self.cut and self.chains.get(x.name, 0) >= MOST_CHAINED:
            given = self.upcast_again(x)
            self.cut[x.name] = f"t{len(self.lines)}"
            self.line(f"{self.cut[x.name]} = fd.ops.segment_set", given)
        return replace(x, name=self.cut[x.name]) if x.name in self.cut else x

    def upcast_again(self, x: Any) -> Any:
        """An argument; an upcast that something else takes is made again.

        nvFuser 0.2.36 stops ("Multiple use of replicated upcast tensor") where one that three
        operations take stands at the border of a segment.
        """
        if isinstance(x, list | tuple):
            return [self.upcast_again(v) for v in x]
        if not isinstance(x, Value) or x.name not in self.upcasts:
            return x
        if x.name in self.used:
            return self._cast(self.upcasts[x.name], x.dtype)
        self.used.add(x.name)
        return x

    def cast(self, value: Value, dtype: str) -> Value:
        """Cast ``value`` to ``dtype``.

        :raises Refused: if nvFuser would round differently from PyTorch.
        """
        if value.dtype == dtype:
            return value
        kinds = value.dtype, dtype
        if any("Float8" in kind for kind in kinds):
            refuse(not all("Float" in COMPUTE[kind] or kind == "Double" for kind in kinds), WHOLE8)
        if "Float8" in dtype:
            value = self.cast(value, "Float")
            value = self.bounded(value, dtype)
        elif "Float8" in value.dtype:
            value = self._cast(value, "Float")
        return value if value.dtype == dtype else self._cast(value, dtype)

    def _cast(self, value: Value, dtype: str) -> Value:
        made = self.op("cast", (dtype, value.shape), value, dtype=_dtype(dtype))
        if value.dtype in ("Half", "BFloat16"):
            self.upcasts[made.name] = value
        return made

    def bounded(self, value: Value, dtype: str) -> Value:
        """``value`` with NaN for numbers that overflow ``dtype``, if PyTorch's cast makes NaN of
        them.

        nvFuser's cast saturates.

        :raises Refused: if PyTorch's cast makes infinities, as for float8_e5m2: nvFuser's makes
            none.
        """
        refuse(dtype == "Float8_e5m2", "nvFuser makes no infinite float8_e5m2")
        if not OVERFLOWS:
            return value
        size = self.op("abs", ("Float", value.shape), value)
        large = self.op("gt", ("Bool", value.shape), size, LARGEST_ROUNDED)
        return self.op("where", ("Float", value.shape), large, float("nan"), value)

    def broadcast(
        self, value: Value, shape: Sequence[Dim], dims: Sequence[int] | None = None
    ) -> Value:
        """Broadcast ``value`` to ``shape``; its dimensions become ``dims`` there, by default the
        last ones.
        """
        if same_shape(value.shape, shape):
            return value
        dims = list(range(len(shape) - value.ndim, len(shape)) if dims is None else dims)
        sizes = self.shape(shape)
        meta = value.dtype, shape
        return self.op("broadcast_in_dim", meta, value, shape=sizes, broadcast_dims=dims)

    def reshape(self, value: Value, shape: Sequence[Dim]) -> Value:
        """Reshape ``value`` to ``shape``.

        A reshape of a reshape starts from the original value: nvFuser fails to split symbolic sizes
        and to merge them again.
        """
        if value.name in self.reshaped:
            value = self.reshaped[value.name]
        if same_shape(value.shape, shape):
            return value
        made = self.op("reshape", (value.dtype, shape), value, new_shape=self.shape(shape))
        self.reshaped[made.name] = value
        return made

    def permute(self, value: Value, dims: Sequence[int]) -> Value:
        """Permute the dimensions of ``value``."""
        dims = [d % value.ndim for d in dims] if value.ndim else []
        if dims == list(range(value.ndim)):
            return value
        shape = [value.shape[d] for d in dims]
        return self.op("permute", (value.dtype, shape), value, dims=dims)

    def squeeze(self, value: Value, dims: Sequence[int]) -> Value:
        """Remove ``dims``, whose sizes are 1."""
        if not dims:
            return value
        shape = [n for d, n in enumerate(value.shape) if d not in dims]
        return self.op("squeeze", (value.dtype, shape), value, dims=list(dims))

    def pad(self, value: Value, widths: Sequence[Any], fill: Any, shape: Sequence[Dim]) -> Value:
        """Pad ``value`` with ``fill``; ``widths`` are pairs (before, after), the last dimension
        first.
        """
        meta = value.dtype, shape
        return self.op("pad", meta, value, pad_widths=widths, value=typed(fill, value.dtype))

    def full(self, shape: Sequence[Dim], fill: Any, dtype: str) -> Value:
        """Make a tensor filled with ``fill``."""
        sizes, fill = self.shape(shape), typed(fill, dtype)
        meta = dtype, shape
        return self.op("full", meta, shape=sizes, fill_value=fill, dtype=_dtype(dtype))

    def iota(self, length: Dim, start: Any = 0, step: Any = 1) -> Value:
        """Make ``length`` integers from ``start``, by ``step``."""
        arguments = {"start": start, "step": step, "dtype": _dtype("Int")}
        return self.op("iota", ("Int", (length,)), self.size(length), **arguments)

    def numbers(self, name: str, state: Seeds, shape: Sequence[Dim], dtype: str) -> Value:
        """Make random numbers from ``state``: "uniform" from 0 to 1, or "normal" of mean 0 and
        deviation 1.
        """
        start, end = 0.0, 1.0  # or the mean and the deviation
        how = {"rng_seed": state.seed, "rng_offset": state.offset, "dtype": _dtype(dtype)}
        return self.op(name, (dtype, shape), start, end, self.shape(shape), **how)

    def constant(self, value: int) -> Text:
        """Define an integer constant, for operations that take no Python number."""
        name = f"c{len(self.lines)}"
        self.line(f"{name} = fd.define_scalar", value, dtype=_dtype("Int"))
        return Text(name)

    # -------------------------------------------------------------------- sizes

    def shape(self, shape: Sequence[Dim]) -> list[Any]:
        """``shape`` as an argument."""
        return [self.size(n) for n in shape]

    def size(self, size: Dim) -> int | Text:
        """``size`` as an argument: a number, or the name of its computation.

        :raises Refused: if nvFuser cannot compute it.
        """
        if isinstance(size, int):
            return size
        if size.name not in self.sizes:
            try:
                found = evaluate_size(size.name, self.symbol, self.algebra())
            except ParseError as error:
                raise Refused(str(error)) from None
            self.sizes[size.name] = found
        return self.sizes[size.name]

    def symbol(self, name: str) -> Text:
        """The name of a symbol's value."""
        if self.places is None:
            return Text(name)
        if name not in self.sizes:
            place = self.places[name]
            given = self.inputs[place.index]
            assert isinstance(given, Value | Number)
            source = given.name
            self.sizes[name] = Text(f"n{len(self.lines)}" if place.dim is not None else source)
            if place.dim is not None:
                self.line(f"{self.sizes[name]} = fd.ops.size", Text(source), dim=place.dim)
        return self.sizes[name]

    def plus(self, a: Any, b: Any, minus: bool = False) -> Any:
        """Sum of two sizes; with ``minus``, their difference."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b if minus else a + b
        return self._computed("sub" if minus else "add", a, b)

    def times(self, a: Any, b: Any) -> Any:
        """Product of two sizes."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return self._computed("mul", a, b)

    def algebra(self) -> Mapping[str, Callable[..., Any]]:
        """Functions that append computations of sizes, for `evaluate_size`."""
        return {name: self._computes(op) for name, op in SIZES.items()} | {
            "neg": lambda a: self._computed("mul", a, -1),
        }

    def _computes(self, op: str) -> Callable[..., Any]:
        return lambda a, b: self._computed(op, a, b)

    def _computed(self, op: str, a: Any, b: Any) -> Text:
        name = f"n{len(self.lines)}"
        self.line(f"{name} = fd.ops.{op}", a, b)
        return Text(name)


SIZES: Mapping[str, str] = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "floordiv": "div",  # sizes are not negative
    "FloorDiv": "div",
    "CleanDiv": "div",
    "mod": "mod",
    "Mod": "mod",
    "PythonMod": "mod",
    "Max": "maximum",
    "Min": "minimum",
}
"""nvFuser's operations for those in expressions of sizes."""


def dtype_of(p: TensorProxy) -> str:
    """nvFuser's name of the data type of ``p``.

    :raises Refused: if it has none.
    """
    if p.dtype.name not in DTYPES:
        raise Refused(f"no kernels for {p.dtype.name}")
    return DTYPES[p.dtype.name]


def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Check that two shapes are equal, symbols by their expressions."""
    return tuple(a) == tuple(b)


def typed(number: Any, dtype: str) -> Any:
    """Convert a Python number to the kind of ``dtype``; values of the definition are unchanged."""
    if isinstance(number, Text | Number):
        return number
    # Beside an integer, a Python float would make a Double of nvFuser's result.
    kind = {"Bool": bool, "Int": int, "Int32": int}.get(dtype, float)
    return kind(number)


def _values(args: Sequence[Any]) -> Iterator[Value]:
    for x in args:
        if isinstance(x, Value):
            yield x
        elif isinstance(x, list | tuple):
            yield from _values(x)


def _whole(hint: object) -> int:
    return hint if isinstance(hint, int) else 0


def _dtype(name: str) -> Text:
    return Text(f"DataType.{name}")


def _argument(value: Any) -> str:
    if isinstance(value, Text):
        return str(value)
    if isinstance(value, Value | Number):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_argument, value))}]"
    # `repr` gives ``nan`` and ``inf``, names that the program has not.
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return f'float("{value}")'
    return repr(value)
