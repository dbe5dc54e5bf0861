"""One call of an operator, while it is translated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from tj_core.extend import Dim, TensorProxy

from tj_nvfuser.definition import COMPUTE, DTYPES, Definition, Number, Value, dtype_of, typed
from tj_nvfuser.refusal import Refused, refuse

__all__ = ["Call", "Operation", "Operations", "axes_of", "axis_of"]

Translate: TypeAlias = "Callable[..., Any]"
"""Translates a call: ``(call, *args, **kwargs)`` as the operator takes them, with values of the
definition for tensors. Returns values for the results; the caller casts them where needed.

:raises Refused: if nvFuser has no such call.
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """Translation of an operator, and its properties.

    ``joins``: it is computed in one kernel with its neighbours. ``computes``: it does more than
    place elements; a region needs at least one such call. ``option``: the field of the options that
    must be true. ``dtypes``: data types that it takes beside `COMMON`. ``makes``: indices of the
    results that it makes; None for all. ``seeded``: its first argument is a state of random
    numbers.
    """

    translate: Translate
    joins: bool = True
    computes: bool = True
    option: str = ""
    dtypes: Collection[str] = ()
    makes: Collection[int] | None = None
    seeded: bool = False


Operations: TypeAlias = "Mapping[str, Operation]"


@dataclass(frozen=True, slots=True)
class Call:
    """The definition ``d``, and the proxies of the call's results."""

    d: Definition
    outputs: tuple[Any, ...]

    @property
    def out(self) -> TensorProxy:
        """The first result."""
        first = self.outputs[0]
        assert isinstance(first, TensorProxy)
        return first

    @property
    def compute(self) -> str:
        """Data type in which the first result is computed."""
        return COMPUTE[dtype_of(self.out)]

    def wide(self, value: Value) -> Value:
        """``value`` in the data type in which it is computed."""
        return self.d.cast(value, COMPUTE[value.dtype])

    def pointwise(self, name: str, *args: Any, compute: str = "", result: str = "") -> Value:
        """Append ``fd.ops.NAME`` of tensors and numbers, in the shape of the first result."""
        compute = compute or self.compute
        return self.each(name, self.out.shape, *args, compute=compute, result=result)

    def each(
        self, name: str, shape: Sequence[Dim], *args: Any, compute: str, result: str = ""
    ) -> Value:
        """Append ``fd.ops.NAME`` of tensors and numbers, each cast to ``compute`` and broadcast to
        ``shape``.
        """
        given = [self.operand(x, shape, compute) for x in args]
        return self.d.op(name, (result or compute, shape), *given)

    def operand(self, x: Any, shape: Sequence[Dim], compute: str) -> Any:
        """Cast and broadcast an argument of an elementwise operation."""
        if isinstance(x, Value):
            return self.d.broadcast(self.d.cast(x, compute), shape)
        return typed(x, compute)

    def promoted(self, *args: Any) -> str:
        """Data type in which PyTorch computes on ``args`` together."""
        kinds = tuple((x.dtype, x.ndim > 0) if isinstance(x, Value) else plain(x) for x in args)
        return COMPUTE[promoted(kinds)]


def plain(x: Any) -> Any:
    """A Python number of the type of ``x``, for promotion."""
    # `result_type` asks for the type of a number, not for its value.
    return 1 if isinstance(x, Number) else type(x)(1)


@functools.lru_cache(maxsize=1024)
def promoted(kinds: tuple[Any, ...]) -> str:
    """nvFuser's name of the data type that ``kinds`` are promoted to.

    A kind is (nvFuser's data type, has dimensions) for a tensor, else a number.

    :raises Refused: if nvFuser has no such data type.
    """
    names = {v: k for k, v in DTYPES.items()}
    values = [
        # A tensor without dimensions does not widen another of its kind, so shapes matter.
        torch.empty((1,) if k[1] else (), dtype=getattr(torch, names[k[0]]), device="meta")
        if isinstance(k, tuple)
        else k
        for k in kinds
    ]
    found: Any = functools.reduce(lambda a, b: _together(a, b), values)
    dtype = found.dtype if isinstance(found, torch.Tensor) else torch.result_type(found, found)
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise Refused(f"no kernels for {name}")
    return DTYPES[name]


def _together(a: Any, b: Any) -> Any:
    dtype = torch.result_type(a, b)
    spread = any(isinstance(x, torch.Tensor) and x.ndim for x in (a, b))
    return torch.empty((1,) if spread else (), dtype=dtype, device="meta")


def axis_of(dim: Any, ndim: int) -> int:
    """``dim`` as a non-negative index.

    :raises Refused: if the tensor has no dimensions.
    """
    refuse(not ndim, "a tensor without dimensions")
    return _known(dim) % ndim


def axes_of(dims: Any, ndim: int) -> list[int]:
    """Dimensions of a reduction; all, if none are given."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(ndim))
    given = [_known(d) for d in (dims if isinstance(dims, list | tuple) else [dims])]
    return [d % ndim for d in given] if ndim else []


def _known(dim: Any) -> int:
    refuse(isinstance(dim, Number), "a dimension that is known when it runs only")
    return int(dim)
