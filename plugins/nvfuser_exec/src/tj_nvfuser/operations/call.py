"""One call of an operator, while it is put into a definition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from tj_core.extend import Dim, TensorProxy

from tj_nvfuser.definition import COMPUTE, DTYPES, Definition, Number, Value, dtype_of, typed
from tj_nvfuser.refused import Refused, refuse

__all__ = ["Call", "Operation", "Operations", "axes_of", "axis_of"]

Translate: TypeAlias = "Callable[..., Any]"
"""Puts a call into a definition: ``(call, *args, **kwargs)`` as the operator takes them, tensors as
values of the definition. Returns values for the results, which are cast where they need it.

:raises Refused: if nvFuser has nothing for such a call."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What an operator is in nvFuser.

    ``joins``: it is computed in one kernel with its neighbours. ``computes``: it does more than
    place elements; a region has one such call at least. ``option``: the field of the options that
    must be true. ``dtypes``: the data types that it takes beside `COMMON`. ``makes``: the places of
    the results that it makes; None: of all. ``seeded``: its first argument is the state that random
    numbers are made of.
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
    """A definition ``d``, and the proxies of what the call returns."""

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
        """What the first result is computed in."""
        return COMPUTE[dtype_of(self.out)]

    def wide(self, value: Value) -> Value:
        """``value`` in what it is computed in."""
        return self.d.cast(value, COMPUTE[value.dtype])

    def pointwise(self, name: str, *args: Any, compute: str = "", result: str = "") -> Value:
        """``fd.ops.NAME`` of tensors and numbers, in the shape of the first result."""
        compute = compute or self.compute
        return self.each(name, self.out.shape, *args, compute=compute, result=result)

    def each(
        self, name: str, shape: Sequence[Dim], *args: Any, compute: str, result: str = ""
    ) -> Value:
        """``fd.ops.NAME`` of tensors and numbers, each in ``compute`` and in ``shape``."""
        given = [self.operand(x, shape, compute) for x in args]
        return self.d.op(name, (result or compute, shape), *given)

    def operand(self, x: Any, shape: Sequence[Dim], compute: str) -> Any:
        """An argument of an elementwise operation."""
        if isinstance(x, Value):
            return self.d.broadcast(self.d.cast(x, compute), shape)
        return typed(x, compute)

    def promoted(self, *args: Any) -> str:
        """What PyTorch computes ``args`` together in."""
        kinds = tuple((x.dtype, x.ndim > 0) if isinstance(x, Value) else plain(x) for x in args)
        return COMPUTE[promoted(kinds)]


def plain(x: Any) -> Any:
    """A number like ``x``, for promotion."""
    return 1 if isinstance(x, Number) else type(x)(1)


@functools.lru_cache(maxsize=1024)
def promoted(kinds: tuple[Any, ...]) -> str:
    """The data type that values of ``kinds`` are promoted to, by nvFuser's name."""
    names = {v: k for k, v in DTYPES.items()}
    values = [
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
    """A dimension, counted from the first.

    :raises Refused: if there is none.
    """
    refuse(not ndim, "a tensor without dimensions")
    return _known(dim) % ndim


def axes_of(dims: Any, ndim: int) -> list[int]:
    """The dimensions of a reduction, all of them if none are given."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(ndim))
    given = [_known(d) for d in (dims if isinstance(dims, list | tuple) else [dims])]
    return [d % ndim for d in given] if ndim else []


def _known(dim: Any) -> int:
    refuse(isinstance(dim, Number), "a dimension that is known when it runs only")
    return int(dim)
