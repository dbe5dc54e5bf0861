"""Programs printed by nvFuser, computed with PyTorch.

nvFuser prints its transformed definition as a definition again: with internal operations, such as
Welford's algorithm for a variance, and without arguments that have their default. Constants have
six digits and no data type.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import define

from tj_nvfuser.testing.reference import DataType, Operations, ReferenceDefinition, Tensor, require

if TYPE_CHECKING:
    from tj_nvfuser.bindings import Run

__all__ = ["printed", "rounded"]


def rounded(text: str) -> str:
    """Round the constants in the definition ``text`` to the digits that nvFuser prints.

    Where numbers become integers, a digit less may change the result.
    """
    return ast.unparse(_Rounded().visit(ast.parse(text)))


class _Rounded(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if not isinstance(node.value, float):
            return node
        return ast.copy_location(ast.Constant(float(f"{node.value:.6g}")), node)


def printed(text: str) -> Run:
    """Make a function that runs a program which nvFuser has printed.

    :raises AttributeError: at run time, if an operation is unknown.
    """
    scope = {"DataType": PrintedTypes, "FusionDefinition": Printed}
    define_fusion = define(text, "nvfuser_fusion", scope, "nvfuser")

    def run(inputs: list[Any]) -> Sequence[Any]:
        definition = Printed(inputs)
        with torch.no_grad():
            define_fusion(definition)
        return definition.outputs

    return run


class PrintedTypes(DataType):
    """nvFuser's data types, and that of its loops' indices."""

    Index = torch.int64


class Printed(ReferenceDefinition):
    """A printed definition, computed for ``inputs``."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__(inputs)
        self.ops = PrintedOperations()

    def define_tensor(
        self,
        shape: Sequence[int],
        contiguity: Sequence[bool | None],
        dtype: torch.dtype,
        is_cpu: bool,
        stride_order: Sequence[int] = (),
    ) -> Tensor:
        """Take the next input; its strides are in the order of its dimensions by default."""
        order = stride_order or list(reversed(range(len(shape))))
        return super().define_tensor(shape, contiguity, dtype, is_cpu, order)


NUMBERS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": lambda a, b: a // b if isinstance(a, int) and isinstance(b, int) else a / b,
    "mod": operator.mod,
    "neg": operator.neg,
    "abs": abs,
    "reciprocal": lambda a: 1 / a if a else math.inf,
    "maximum": max,
    "minimum": min,
    "eq": operator.eq,
    "ne": operator.ne,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "ceilDiv": lambda a, b: -(-a // b),
    "logical_and": lambda a, b: a and b,
    "logical_or": lambda a, b: a or b,
    "logical_not": operator.not_,
}
"""Operations on numbers."""


class PrintedOperations(Operations):
    """``fd.ops`` of printed programs, in which numbers have operations, too, and shapes are
    broadcast.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        table = self.table
        if name not in table and name not in NUMBERS:
            raise AttributeError(f"the reference of nvFuser has no {name}")

        def run(*values: Any) -> Any:
            tensors = [v for v in values if isinstance(v, Tensor)]
            if not tensors:
                return NUMBERS[name](*values)
            function, kinds = table[name]
            require(len({x.dtype for x in tensors}) == 1, f"mixed types in {name}")
            require(tensors[0].dtype in kinds, f"no kernel of {name} for {tensors[0].dtype}")
            dtype = tensors[0].dtype
            return function(
                *(v if isinstance(v, Tensor) else torch.tensor(v, dtype=dtype) for v in values)
            )

        return run

    def cast(self, x: Any, dtype: torch.dtype) -> Any:
        if isinstance(x, Tensor):
            return super().cast(x, dtype)
        if dtype is torch.bool:
            return bool(x)
        return float(x) if dtype.is_floating_point else int(x)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        if not isinstance(condition, Tensor):
            return a if condition else b
        require(condition.dtype is torch.bool, "a condition is not boolean")
        return torch.where(condition, a, b)

    # -------------------------------------------------------------------- shapes

    def expand(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return x.expand(*shape)

    def squeeze(self, x: Tensor, dims: Sequence[int], squeeze_expanded: bool = False) -> Tensor:
        """Remove ``dims``; with ``squeeze_expanded``, also expanded
        ones, whose elements are equal.
        """
        for d in sorted(dims, reverse=True) if squeeze_expanded else ():
            first = x.narrow(d, 0, 1)
            same = (x == first) | ((x != x) & (first != first))
            require(same.all(), f"dimension {d} is not expanded")
            x = first
        return super().squeeze(x, dims)

    def stride_order(self, x: Tensor, stride_order: Sequence[int]) -> Tensor:
        return super().stride_order(x, stride_order or list(reversed(range(x.dim()))))

    def slice(
        self,
        x: Tensor,
        start_indices: Sequence[int],
        end_indices: Sequence[int],
        strides: Sequence[int] = (),
        manual_normalization: bool = False,
    ) -> Tensor:
        require(all(step == 1 for step in strides), "a slice has steps")
        return super().slice(x, start_indices, end_indices)

    def cat(self, tensors: Sequence[Tensor], dim: int, manual_padding: bool = False) -> Tensor:
        """Concatenate; with ``manual_padding``, the tensors are padded with zeros and are added."""
        if not manual_padding:
            return super().cat(tensors, dim)
        require(len({x.shape for x in tensors}) == 1, "mixed shapes")
        total = tensors[0]
        for x in tensors[1:]:
            total = total | x if x.dtype is torch.bool else total + x
        return total

    def iota(
        self, length: int, start: int = 0, step: int = 1, dtype: torch.dtype = torch.int64
    ) -> Tensor:
        return super().iota(length, start, step, dtype)

    def uniform(
        self,
        minval: float,
        maxval: float,
        shape: Sequence[int],
        *,
        rng_seed: int,
        rng_offset: int,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        state = {"rng_seed": rng_seed, "rng_offset": rng_offset}
        return super().uniform(minval, maxval, shape, **state, dtype=dtype)

    def normal(
        self,
        mean: float,
        std: float,
        shape: Sequence[int],
        *,
        rng_seed: int,
        rng_offset: int,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        state = {"rng_seed": rng_seed, "rng_offset": rng_offset}
        return super().normal(mean, std, shape, **state, dtype=dtype)

    # -------------------------------------------------------------------- reductions and sorts

    def sum(
        self,
        x: Tensor,
        dims: Sequence[int],
        keepdim: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        require(dtype in (None, x.dtype), f"a sum of {x.dtype} in {dtype}")
        return super().sum(x, dims, keepdim)

    def prod(
        self,
        x: Tensor,
        dims: Sequence[int],
        keepdim: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        require(dtype in (None, x.dtype), f"a product of {x.dtype} in {dtype}")
        return super().prod(x, dims, keepdim)

    def max(self, x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
        return super().max(x, dims, keepdim)

    def min(self, x: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
        return super().min(x, dims, keepdim)

    def welford(self, x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Means, sums of squared deviations, and counts."""
        var, mean = torch.var_mean(x, list(dims), correction=0)
        count = math.prod(x.size(d) for d in dims)
        return mean, var * count, torch.full_like(mean, count, dtype=torch.int64)

    def topk(
        self, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = False
    ) -> tuple[Tensor, Tensor]:
        return super().topk(x, k, dim, largest, sorted)

    def argsort(
        self, x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False
    ) -> Tensor:
        return super().argsort(x, dim, descending, stable)

    # -------------------------------------------------------------------- indices

    def index_select(self, x: Tensor, index: Tensor, dim: int) -> Tensor:
        """Select by a vector, which may have further dimensions of size 1."""
        require(max(index.numel(), 1) == max(index.shape, default=1), "an index is no vector")
        return super().index_select(x, index.reshape(-1), dim)

    # -------------------------------------------------------------------- products and attention

    def scaled_mm(
        self,
        a: Tensor,
        b: Tensor,
        scale_a: Tensor,
        scale_b: Tensor,
        *,
        bias: Tensor | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> tuple[Tensor, None, None]:
        return super().scaled_mm(a, b, scale_a, scale_b, bias=bias, dtype=dtype)

    def sdpfa_fwd(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        dropout_p: float,
        is_causal: bool,
        scale: float | None = None,
    ) -> tuple[Tensor, ...]:
        return super().sdpfa_fwd(
            query, key, value, dropout_p=dropout_p, is_causal=is_causal, scale=scale
        )
