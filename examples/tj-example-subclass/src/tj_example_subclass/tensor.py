"""`Precise`: numbers of about twice float32's precision, each the sum of two float32 numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

__all__ = ["Precise"]


class Precise(torch.Tensor):
    """A tensor whose dtype is float64 and whose value is ``high + low``, both float32.

    PyTorch's operators compute in float64, and their results are split again. Operators that write
    raise.
    """

    high: torch.Tensor
    low: torch.Tensor

    def __new__(cls, high: torch.Tensor, low: torch.Tensor) -> Any:  # noqa: D102
        return torch.Tensor._make_wrapper_subclass(
            cls,
            high.shape,
            strides=high.stride(),
            storage_offset=high.storage_offset(),
            dtype=torch.float64,
            device=high.device,
        )

    def __init__(self, high: torch.Tensor, low: torch.Tensor) -> None:
        self.high = high
        self.low = low

    @classmethod
    def of(cls, values: torch.Tensor) -> Any:
        """Split float64 ``values``, rounded to 48 bits."""
        high = values.float()
        return cls(high, (values - high.double()).float())

    def whole(self) -> torch.Tensor:
        """The values as float64."""
        return self.high.double() + self.low.double()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Precise({self.whole()})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["high", "low"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["high"], inner["low"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            raise NotImplementedError(f"{func} writes, and Precise tensors are not written")
        if func.is_view or func is torch.ops.aten.detach.default:
            high = func(*pytree.tree_map_only(cls, lambda t: t.high, args), **kwargs)
            low = func(*pytree.tree_map_only(cls, lambda t: t.low, args), **kwargs)
            viewed = pytree.tree_map(cls, high, low)
            return return_and_correct_aliasing(func, args, kwargs, viewed)
        args, kwargs = pytree.tree_map_only(cls, cls.whole, (args, kwargs))
        return pytree.tree_map_only(torch.Tensor, cls._split, func(*args, **kwargs))

    @classmethod
    def _split(cls, result: torch.Tensor) -> Any:
        return cls.of(result) if result.dtype is torch.float64 else result
