"""Convert between PyTorch's values and the core's: dtypes, devices, metadata, constants."""

from __future__ import annotations

import cmath
import enum
import functools
import math
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from tj_core.extend import (
    Constant,
    Device,
    Dim,
    DType,
    NumberProxy,
    Proxy,
    SubclassInfo,
    SymDim,
    TensorProxy,
    leaves,
    map_tree,
)

from tj_torch.ops.sizes.shape_env import is_symbolic, kind_of, number_text, plain
from tj_torch.runtime.subclasses import is_wrapper
from tj_torch.torch_private.runtime import OpOverload, OpOverloadPacket

__all__ = [
    "State",
    "constant",
    "device_to_core",
    "device_to_torch",
    "dim_to_core",
    "dtype_to_core",
    "dtype_to_torch",
    "number_proxy",
    "subclass_of",
    "tensor_proxy",
    "to_core",
    "to_core_tree",
    "to_torch",
    "value_proxy",
]

SymNumber: TypeAlias = "torch.SymInt | torch.SymFloat | torch.SymBool"


# ---------------------------------------------------------------------------- metadata


@functools.lru_cache(maxsize=256)
def dtype_to_core(dtype: torch.dtype) -> DType:
    """Core data type for ``dtype``, from its name and its element size."""
    name = str(dtype).removeprefix("torch.")
    # A bool takes a byte: `torch.bool.itemsize` is 1.
    return DType(name, dtype.itemsize * 8, _dtype_kind(dtype, name))


def _dtype_kind(dtype: torch.dtype, name: str) -> str:
    if dtype.is_floating_point:
        return "float"
    if dtype.is_complex:
        return "complex"
    word = name.rstrip("0123456789")
    return word if word in ("int", "uint", "bool") else "opaque"


@functools.lru_cache(maxsize=256)
def dtype_to_torch(dtype: DType) -> torch.dtype:
    """PyTorch data type of the same name.

    :raises LookupError: if this PyTorch has none.
    """
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype):
        raise LookupError(f"PyTorch {torch.__version__} has no data type {dtype.name!r}")
    return found


@functools.lru_cache(maxsize=256)
def device_to_core(device: torch.device) -> Device:
    """Core device for ``device``."""
    return Device(device.type, device.index)


@functools.lru_cache(maxsize=256)
def device_to_torch(device: Device) -> torch.device:
    """PyTorch device of the same type and index."""
    return torch.device(str(device))


def dim_to_core(size: int | torch.SymInt) -> Dim:
    """Core size or stride; a symbolic one is an expression, see `tj_torch.ops.sizes.program`."""
    if isinstance(size, int):
        return size
    return SymDim(number_text(size)) if is_symbolic(size) else int(plain(size))


def tensor_proxy(
    name: str, tensor: torch.Tensor, dim: Callable[[int | torch.SymInt], Dim] = dim_to_core
) -> TensorProxy:
    """Proxy ``name`` with the metadata of ``tensor``, real or fake.

    ``dim`` converts a symbolic size.
    """
    # "Sparse CSR tensors do not have strides", and those of other layouts say nothing.
    strided = tensor.layout is torch.strided
    return TensorProxy(
        name,
        _dims(tensor.shape, dim),
        _dims(tensor.stride(), dim) if strided else (),
        dtype_to_core(tensor.dtype),
        device_to_core(tensor.device),
        tensor.requires_grad,
        "strided" if strided else _word(tensor.layout),
        _flags(tensor) if strided else (),
        subclass_of(tensor, dim),
    )


def _dims(sizes: tuple[Any, ...], dim: Callable[[Any], Dim]) -> tuple[Dim, ...]:
    return tuple([s if type(s) is int else dim(s) for s in sizes])


def _flags(tensor: torch.Tensor) -> tuple[str, ...]:
    if tensor.is_conj():
        return ("conj", "neg") if tensor.is_neg() else ("conj",)
    return ("neg",) if tensor.is_neg() else ()


@dataclass(frozen=True)
class State:
    """State of a wrapper subclass beside its inner tensors, as it flattens.

    ``context`` is the second result of ``__tensor_flatten__``, ``rest`` the attributes it names
    that are no tensors.
    """

    kind: type
    context: Any
    rest: dict[str, Any]


_STATES: dict[tuple[str, str], list[weakref.ref[State]]] = {}
"""Distinct states so far, by the name of the type and their text.

One table per process and not per session: the number of a state is in the text of traces, where it
tells states with equal texts apart, and a trace may be read in another session. A number is not
given again after its state is freed, since caches have it in their keys; so one dead reference
is left of each state. Two threads may give equal states two numbers: they share no program
then, which is slower and not wrong.
"""


def subclass_of(
    tensor: torch.Tensor, dim: Callable[[int | torch.SymInt], Dim] = dim_to_core
) -> SubclassInfo | None:
    """Inner tensors and state of a traceable wrapper subclass; None for any other tensor.

    Attributes that are no tensors, such as a device mesh, are part of its state. There is no state
    if it contains a tensor or a symbolic number, which a trace would keep alive; then no wrapper
    can be made in the program. ``dim`` converts a symbolic size.
    """
    if not is_wrapper(tensor):
        return None
    kind = type(tensor)
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = {name: getattr(tensor, name) for name in names}
    tensors = {n: v for n, v in parts.items() if isinstance(v, torch.Tensor)}
    # Autograd tracks the wrapper, not its inner tensors.
    inner = {n: tensor_proxy(n, v, dim).replace(requires_grad=False) for n, v in tensors.items()}
    rest = {n: v for n, v in parts.items() if n not in inner}
    name = f"{kind.__module__}.{kind.__qualname__}"
    beside = leaves((context, rest))
    hidden = any(isinstance(value, torch.Tensor) or is_symbolic(value) for value in beside)
    shown = map_tree(lambda _: torch.Tensor, (context, rest), torch.Tensor)
    text = _SIZE.sub(_as_tuple, repr(shown if rest else shown[0]))
    if hidden:
        return SubclassInfo(name, tuple(inner.items()), text)
    index, state = _known(State(kind, context, rest), name, text)
    text += f" #{index}" if index else ""  # tells unequal states with equal texts apart
    return SubclassInfo(name, tuple(inner.items()), text, state)


_SIZE = re.compile(r"torch\.Size\(\[(.*?)\]\)")


def _as_tuple(size: re.Match[str]) -> str:
    """Print a `torch.Size` as the tuple that it equals."""
    return f"({size[1]},)" if re.fullmatch(r"\d+", size[1]) else f"({size[1]})"


def _known(state: State, name: str, text: str) -> tuple[int, State]:
    """Canonical object of all equal states, with its number among those with the same ``text``."""
    same = _STATES.setdefault((name, text), [])
    for index, reference in enumerate(same):
        known = reference()
        if known is not None and _equal(known, state):
            return index, known
    same.append(weakref.ref(state))
    return len(same) - 1, state


def _equal(one: State, other: State) -> bool:
    """Compare two states; unequal if comparison fails, as for arrays."""
    try:
        return bool(one == other)
    # `==` of a context may be the user's, or return an array, which has no truth.
    except Exception:
        return False


def number_proxy(name: str, value: SymNumber) -> NumberProxy:
    """Proxy ``name`` for a symbolic number, without a hint."""
    return NumberProxy(name, kind_of(value), number_text(value))


def value_proxy(name: str, value: Any) -> TensorProxy | NumberProxy:
    """Proxy ``name`` for a tensor or a symbolic number."""
    if isinstance(value, torch.Tensor):
        return tensor_proxy(name, value)
    return number_proxy(name, value)


# ---------------------------------------------------------------------------- arguments


_LITERALS = (int, str, bool, bytes, type(None), type(...))


def to_core_tree(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """``tree`` in plain containers of the core, with ``leaf`` applied to its leaves."""
    if isinstance(tree, tuple):
        return tuple(to_core_tree(item, leaf) for item in tree)
    if isinstance(tree, list):
        return [to_core_tree(item, leaf) for item in tree]
    if isinstance(tree, dict):
        return {key: to_core_tree(item, leaf) for key, item in tree.items()}
    if isinstance(tree, slice):
        return slice(*(to_core_tree(x, leaf) for x in (tree.start, tree.stop, tree.step)))
    return leaf(tree)


def to_core(value: Any) -> Any:
    """Core leaf or tree for an argument or result that is no tensor of the program.

    Literals stay; an object with a dotted name or an expression becomes a named `Constant`, any
    other one an unnamed `Constant`.

    :raises TypeError: for a symbolic number without a known value.
    """
    kind = type(value)
    if kind in _LITERALS or isinstance(value, Proxy | Constant):
        return value
    if kind is float:
        return value if math.isfinite(value) else Constant(f'float("{value}")', value)
    if kind is complex:
        return value if cmath.isfinite(value) else Constant(_complex_text(value), value)
    if isinstance(value, tuple | list | dict | slice):
        return to_core_tree(value, to_core)
    if is_symbolic(value):
        raise TypeError(f"{value} is known only at run time and has no name")
    known = plain(value)
    return constant(value) if known is value else known


def _complex_text(value: complex) -> str:
    return f'complex(float("{value.real}"), float("{value.imag}"))'


def constant(value: Any) -> Constant:
    """Constant for ``value``, if possible named by an expression that evaluates to it."""
    text = _text(value)
    if text is not None:
        return Constant(text, value)
    return Constant(f"_{type(value).__name__.lstrip('_')}", value, named=False)


def _text(value: Any) -> str | None:
    """Expression over ``torch`` and builtins that evaluates to ``value``, None if there is none."""
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format | torch.qscheme):
        return str(value)
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if isinstance(value, range):
        return repr(value)
    for text in _names(value):
        if _evaluates(text, value):
            return text
    return None


def _names(value: Any) -> list[str]:
    """Candidate dotted names of ``value``, the likeliest first."""
    if isinstance(value, OpOverload | OpOverloadPacket):
        return [f"torch.ops.{value}"]
    kind = type(value)
    if isinstance(value, enum.Enum) or hasattr(kind, "__members__"):
        name = getattr(value, "name", "")
        return [f"{kind.__module__}.{part}.{name}" for part in _spellings(kind.__qualname__)]
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str) or "<" in name:
        return []
    if getattr(value, "__module__", None) == "builtins":
        return [name]
    last = name.rpartition(".")[2]
    homes = ("torch", "torch.Tensor", "torch.nn.functional")
    return [f"{getattr(value, '__module__', None)}.{name}", *(f"{home}.{last}" for home in homes)]


def _spellings(qualname: str) -> tuple[str, ...]:
    """Spellings of an enum's name: PyTorch binds C++ enums with a leading underscore."""
    return (qualname.lstrip("_"), qualname)


def _evaluates(text: str, value: Any) -> bool:
    first, *rest = text.split(".")
    if first == "torch":
        found: Any = torch
    elif not rest:
        found = getattr(sys.modules["builtins"], first, None)
    else:
        return False
    for part in rest:
        found = getattr(found, part, None)
    return found is value or (
        found is not None
        and hasattr(type(value), "__members__")
        and type(found) is type(value)
        and found == value
    )


def _word(layout: torch.layout) -> str:
    return str(layout).removeprefix("torch.")


def to_torch(tree: Any) -> Any:
    """``tree`` with constants replaced by their values; proxies stay."""
    return map_tree(_constant_value, tree, Constant)


def _constant_value(item: Constant) -> Any:
    return item.value
