"""A stand-in for nvFuser's ``FusionDefinition`` that computes with PyTorch as it is defined.

It has nvFuser's rules for data types, as observed with nvFuser 0.2.36: operations on 16 bits whose
kernels do not compile are refused, results have nvFuser's data types, and arguments have one data
type and one shape, since a definition makes casts and broadcasts explicit. A result that is a view
in nvFuser is one here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import Device, define

from tj_nvfuser.definition import DTYPES
from tj_nvfuser.testing.names import attention, attention_backward, scaled_product

if TYPE_CHECKING:
    from tj_nvfuser.bindings import Run

__all__ = ["DataType", "Reference", "ReferenceDefinition"]

Tensor = torch.Tensor

TORCH: dict[str, torch.dtype] = {theirs: getattr(torch, mine) for mine, theirs in DTYPES.items()}


class DataType:
    """nvFuser's data types; their values are PyTorch's."""


for _name, _dtype in TORCH.items():
    setattr(DataType, _name, _dtype)

LOW = (torch.float16, torch.bfloat16)
WIDE = (torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class Reference:
    """Runs definitions with PyTorch, on CPUs."""

    devices: Collection[str] = ("cpu",)

    def capability(self, device: Device) -> tuple[int, int]:
        """Compute capability of an H200."""
        return 9, 0

    def no_scans(self) -> None:
        """None: scans need no compiler here."""
        return None

    def build(self, text: str) -> Run:
        """Make a function that runs the definition ``text``."""
        scope = {"DataType": DataType, "FusionDefinition": ReferenceDefinition}
        define_fusion = define(text, "nvfuser_fusion", scope, "nvfuser")

        def run(inputs: list[Any]) -> Sequence[Any]:
            definition = ReferenceDefinition(inputs)
            with torch.no_grad():
                define_fusion(definition)
            return definition.outputs

        return run


class ReferenceDefinition:
    """A definition that is computed for ``inputs`` while it is made."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.inputs: Iterator[Any] = iter(inputs)
        self.outputs: list[Tensor] = []
        self.ops = Operations()

    def define_tensor(
        self,
        shape: Sequence[int],
        contiguity: Sequence[bool | None],
        dtype: torch.dtype,
        is_cpu: bool,
        stride_order: Sequence[int],
    ) -> Tensor:
        """Take the next input, and check that it matches its description."""
        x: Tensor = next(self.inputs).detach()
        require(x.dtype is dtype, f"an input is {x.dtype}")
        require(not is_cpu, "an input is on another device")
        require(len(shape) == x.dim(), f"an input has {x.dim()} dimensions")
        for said, size in zip(shape, x.shape, strict=True):
            require(said in (-1, size), f"an input has size {size}, not {said}")
        described(x, contiguity, stride_order)
        return x

    def define_scalar(self, value: Any, dtype: torch.dtype) -> Any:
        """A constant, or the next input."""
        return next(self.inputs) if value is None else value

    def add_output(self, x: Tensor) -> None:
        """Return ``x``."""
        require(isinstance(x, Tensor), "an output is no tensor")
        self.outputs.append(x)


def require(condition: object, problem: str) -> None:
    """Refuse a definition, as nvFuser would, unless ``condition`` is true.

    :raises RuntimeError: if it is false.
    """
    if not condition:
        raise RuntimeError(f"the reference of nvFuser: {problem}")


def described(x: Tensor, contiguity: Sequence[bool | None], order: Sequence[int]) -> None:
    """Check that the strides of ``x`` match ``contiguity`` and ``order``."""
    require(sorted(order) == list(range(x.dim())), f"{order} is no order")
    ranked = sorted(range(x.dim()), key=lambda d: -order[d])
    inner: int | None = None
    for place in reversed(range(x.dim())):
        dim, said = ranked[place], contiguity[place]
        if said is None:
            require(x.size(dim) == 1 or x.stride(dim) == 0, f"dimension {dim} is no broadcast")
            continue
        least = 1 if inner is None else x.stride(inner)
        require(x.stride(dim) >= least, f"{x.stride()} is not in the order {order}")
        dense = 1 if inner is None else x.stride(inner) * x.size(inner)
        require(not said or x.stride(dim) == dense, f"dimension {dim} of {x.stride()} has gaps")
        inner = dim


def operands(values: Sequence[Any], kinds: Collection[torch.dtype]) -> list[Any]:
    """Check that tensors have one data type, of ``kinds``, and one shape; convert numbers to
    tensors.
    """
    tensors = [v for v in values if isinstance(v, Tensor)]
    require(len({x.dtype for x in tensors}) == 1, f"mixed types {[x.dtype for x in tensors]}")
    dtype = tensors[0].dtype
    require(dtype in kinds, f"no kernel for {dtype}")
    require(len({x.shape for x in tensors}) == 1, f"mixed shapes {[x.shape for x in tensors]}")
    for v in values:
        if not isinstance(v, Tensor):
            whole = isinstance(v, int)
            require(whole or dtype in WIDE, f"{v} with {dtype} would be Double")
    return [v if isinstance(v, Tensor) else torch.tensor(v, dtype=dtype) for v in values]


ANY = (*WIDE, *INTEGERS, torch.bool)
NUMBERS = (*WIDE, *INTEGERS)
WHOLE = (*INTEGERS, torch.bool)


def _table() -> dict[str, tuple[Callable[..., Any], Collection[torch.dtype]]]:
    """Elementwise operations, and the data types that they have kernels for."""
    functions: dict[str, tuple[Callable[..., Any], Collection[torch.dtype]]] = {}
    floats = (
        "acos acosh asin asinh atan atanh cos cosh erf erfc erfinv exp exp2 expm1 lgamma log log10 "
        "log1p log2 reciprocal rsqrt sigmoid sin sinh sqrt tan tanh ceil floor frac round trunc "
        "isfinite isinf isnan isneginf isposinf atan2 pow"
    )
    functions |= {name: (getattr(torch, name), WIDE) for name in floats.split()}
    numbers = "abs neg sign relu add sub mul maximum minimum fmod remainder"
    functions |= {name: (getattr(torch, name), NUMBERS) for name in numbers.split()}
    anything = "eq ne ge gt le lt logical_and logical_or logical_not"
    functions |= {name: (getattr(torch, name), ANY) for name in anything.split()}
    bits = "bitwise_and bitwise_or bitwise_xor bitwise_not"
    functions |= {name: (getattr(torch, name), WHOLE) for name in bits.split()}
    shifts = "bitwise_left_shift bitwise_right_shift gcd"
    functions |= {name: (getattr(torch, name), INTEGERS) for name in shifts.split()}
    return functions | {"div": (_div, NUMBERS)}


def _div(a: Tensor, b: Tensor) -> Tensor:
    """Divide; integers are truncated, as in C."""
    return torch.div(a, b, rounding_mode=None if a.dtype in WIDE else "trunc")


NUMERIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "maximum": max,
    "minimum": min,
}
"""Operations on sizes."""


class Operations:
    """``fd.ops``."""

    def __init__(self) -> None:
        self.table = _table()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        table = self.table
        if name not in table and name not in NUMERIC:
            raise AttributeError(f"the reference of nvFuser has no {name}")

        def run(*values: Any) -> Any:
            if not any(isinstance(v, Tensor) for v in values):
                return NUMERIC[name](*values)
            function, kinds = table[name]
            return function(*operands(values, kinds))

        return run

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype in FLOAT8:  # what is too large becomes the largest number
            require(x.dtype is torch.float32, f"no cast of {x.dtype} to {dtype}")
            largest = torch.finfo(dtype).max
            return x.clamp(-largest, largest).to(dtype)
        require(x.dtype not in FLOAT8 or dtype is torch.float32, f"no cast of {x.dtype} to {dtype}")
        return x.to(dtype)

    def set(self, x: Tensor) -> Tensor:
        return x

    def segment_set(self, x: Tensor) -> Tensor:
        return x.clone()

    def where(self, condition: Tensor, a: Any, b: Any) -> Tensor:
        require(condition.dtype is torch.bool, "a condition is not boolean")
        # nvFuser makes an integer of a boolean there, where eager keeps it.
        require(not any(isinstance(x, bool) for x in (a, b)), "a choice of True is an integer")
        a, b = operands([a, b], ANY)
        require(
            condition.shape in {x.shape for x in (a, b) if x.dim()} or not condition.dim(),
            "mixed shapes",
        )
        return torch.where(condition, a, b)

    def size(self, x: Tensor, dim: int) -> int:
        return x.size(dim)

    # -------------------------------------------------------------------- shapes

    def broadcast(self, x: Tensor, is_broadcast_dim: Sequence[bool]) -> Tensor:
        for dim, new in enumerate(is_broadcast_dim):
            x = x.unsqueeze(dim) if new else x
        require(x.dim() == len(is_broadcast_dim), "a broadcast has other dimensions")
        return x

    def broadcast_in_dim(
        self, x: Tensor, shape: Sequence[int], broadcast_dims: Sequence[int]
    ) -> Tensor:
        require(x.dim() == len(broadcast_dims), "a broadcast has other dimensions")
        sizes = [1] * len(shape)
        for dim, size in zip(broadcast_dims, x.shape, strict=True):
            sizes[dim] = size
        return x.reshape(sizes).expand(*shape)

    def reshape(self, x: Tensor, new_shape: Sequence[int]) -> Tensor:
        return x.reshape(*new_shape) if new_shape else x.reshape(())

    def permute(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        return x.permute(*dims)

    def stride_order(self, x: Tensor, stride_order: Sequence[int]) -> Tensor:
        """Copy ``x`` to memory of its own, with its strides in that order."""
        dims = sorted(range(x.dim()), key=lambda d: -stride_order[d])
        back = sorted(range(x.dim()), key=dims.__getitem__)
        return x.permute(dims).contiguous().permute(back)

    def squeeze(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        require(all(x.size(d) == 1 for d in dims), f"{dims} of {x.shape} are not 1")
        return x.squeeze(tuple(dims))

    def slice(self, x: Tensor, start_indices: Sequence[int], end_indices: Sequence[int]) -> Tensor:
        require(min(start_indices, default=0) >= 0, "a slice starts before 0")
        found = x[tuple(map(slice, start_indices, end_indices))]
        for d, start in enumerate(start_indices):
            wrong = start and found.size(d) == 1 and x.dim() - d > 2
            require(not wrong, "nvFuser reads one element from the start of the tensor")
        return found

    def select(self, x: Tensor, index: int, dim: int) -> Tensor:
        require(0 <= index < x.size(dim), f"index {index} is out of range")
        return x.select(dim, index)

    def cat(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        require(len({x.dtype for x in tensors}) == 1, "mixed types")
        return torch.cat(list(tensors), dim)

    def pad(self, x: Tensor, pad_widths: Sequence[int], value: Any) -> Tensor:
        found: Tensor = torch.nn.functional.pad(x, list(pad_widths), value=value)
        return found

    def full(self, shape: Sequence[int], fill_value: Any, dtype: torch.dtype) -> Tensor:
        return torch.full(tuple(shape), fill_value, dtype=dtype)

    def iota(self, length: int, start: int, step: int, dtype: torch.dtype) -> Tensor:
        return torch.arange(length, dtype=dtype) * step + start

    def uniform(
        self,
        minval: float,
        maxval: float,
        shape: Sequence[int],
        *,
        rng_seed: int,
        rng_offset: int,
        dtype: torch.dtype,
    ) -> Tensor:
        generator = torch.Generator().manual_seed(abs(rng_seed) // 2 + rng_offset)
        return torch.empty(*shape, dtype=dtype).uniform_(minval, maxval, generator=generator)

    def normal(
        self,
        mean: float,
        std: float,
        shape: Sequence[int],
        *,
        rng_seed: int,
        rng_offset: int,
        dtype: torch.dtype,
    ) -> Tensor:
        generator = torch.Generator().manual_seed(abs(rng_seed) // 2 + rng_offset)
        return torch.empty(*shape, dtype=dtype).normal_(mean, std, generator=generator)

    # -------------------------------------------------------------------- reductions and scans

    def sum(self, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        require(dims and x.dtype in NUMBERS, f"no sum of {x.dtype} along {dims}")
        return x.sum(list(dims), keepdim=keepdim)

    def prod(self, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        require(dims and x.dtype in NUMBERS, f"no product of {x.dtype} along {dims}")
        for dim in sorted(dims, reverse=True):
            x = x.prod(dim, keepdim=keepdim)
        return x

    def max(self, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        require(dims and x.dtype in NUMBERS, f"no maximum of {x.dtype} along {dims}")
        return x.amax(list(dims), keepdim=keepdim)

    def min(self, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        require(dims and x.dtype in NUMBERS, f"no minimum of {x.dtype} along {dims}")
        return x.amin(list(dims), keepdim=keepdim)

    def var_mean(
        self, x: Tensor, dims: Sequence[int], correction: int, keepdim: bool
    ) -> tuple[Tensor, Tensor]:
        require(dims and x.dtype in WIDE, f"no variance of {x.dtype} along {dims}")
        return torch.var_mean(x, list(dims), correction=correction, keepdim=keepdim)

    def cumsum(self, x: Tensor, dim: int) -> Tensor:
        require(x.dtype in NUMBERS, f"no sum of {x.dtype}")
        return x.cumsum(dim, dtype=x.dtype)

    def cumprod(self, x: Tensor, dim: int) -> Tensor:
        require(x.dtype in NUMBERS, f"no product of {x.dtype}")
        return x.cumprod(dim, dtype=x.dtype)

    # -------------------------------------------------------------------- indices and sorts

    def index_select(self, x: Tensor, index: Tensor, dim: int) -> Tensor:
        return x.index_select(dim, index)

    def take_along_axis(self, x: Tensor, index: Tensor, dim: int) -> Tensor:
        sizes = [
            (a, b) for d, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if d != dim
        ]
        require(all(a == b for a, b in sizes), "mixed shapes")
        return x.take_along_dim(index.long(), dim)

    def scatter(self, x: Tensor, index: Tensor, src: Tensor, dim: int) -> Tensor:
        require(x.dtype is src.dtype, "mixed types")
        return x.scatter(dim, index, src)

    def topk(
        self, x: Tensor, k: int, dim: int, largest: bool, sorted: bool
    ) -> tuple[Tensor, Tensor]:
        values, indices = torch.topk(x, k, dim, largest, sorted)
        return values, indices

    def argsort(self, x: Tensor, dim: int, descending: bool, stable: bool) -> Tensor:
        return torch.argsort(x, dim=dim, descending=descending, stable=stable)

    # -------------------------------------------------------------------- products

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        require(a.dtype is b.dtype, "mixed types")
        return a @ b

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        require(x.dtype is weight.dtype, "mixed types")
        return torch.nn.functional.linear(x, weight, bias)

    def scaled_mm(
        self,
        a: Tensor,
        b: Tensor,
        scale_a: Tensor,
        scale_b: Tensor,
        *,
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, None, None]:
        require(scale_a.dtype is scale_b.dtype is torch.float32, "scales are in float32")
        product = scaled_product(a, b, scale_a, scale_b, bias=bias, out_dtype=dtype)
        return product, None, None

    # -------------------------------------------------------------------- attention

    def sdpfa_fwd(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
    ) -> tuple[Tensor, ...]:
        attends(query, key, value)
        out, sums = attention(query, key, value, dropout_p, is_causal, scale=scale)
        seed = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
        return out, sums, *seed

    def sdpfa_bwd(
        self,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        sums: Tensor,
        *,
        dropout_p: float,
        is_causal: bool,
        philox_seed: Tensor,
        philox_offset: Tensor,
        scale: float | None,
    ) -> tuple[Tensor, ...]:
        attends(query, key, value)
        require(philox_seed.shape == (2,) and philox_offset.shape == (), "no state of a generator")
        given = grad, query, key, value, out, sums, dropout_p, is_causal
        found: tuple[Tensor, ...] = attention_backward(*given, scale=scale)
        return found


def attends(*values: Tensor) -> None:
    """Check that nvFuser and its kernels take ``values`` for attention."""
    require({x.dtype for x in values} < {*LOW} and values[0].dtype in LOW, "not in 16 bits")
    require(all(x.dim() == 4 for x in values), "not of 4 dimensions")
    require(len({x.shape[:2] for x in values}) == 1, "other numbers of heads")
