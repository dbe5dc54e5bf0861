"""Tensor subclasses of all sorts, by their inner tensors, results of operations, and overrides.

Wrapper subclasses flatten; none of these changes operations on other tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

__all__ = [
    "Attached",
    "Counted",
    "Doubling",
    "Labeled",
    "Loud",
    "Lower",
    "Named",
    "Opaque",
    "Packed",
    "Rows",
    "Scaled",
    "Sideways",
    "Summing",
    "Swapping",
    "Wrapper",
    "wrapped",
]

aten = torch.ops.aten


def wrapped(
    cls: Any, like: torch.Tensor, *, dtype: torch.dtype | None = None, strides: Any = None
) -> Any:
    """A tensor of type ``cls`` with no memory of its own and the metadata of ``like``."""
    return torch.Tensor._make_wrapper_subclass(
        cls,
        like.shape,
        strides=like.stride() if strides is None else strides,
        storage_offset=like.storage_offset(),
        dtype=like.dtype if dtype is None else dtype,
        device=like.device,
        layout=like.layout,
        requires_grad=like.requires_grad,
    )


class Wrapper(torch.Tensor):
    """Holds one inner tensor, on which all operations run; `_rewrap` wraps results."""

    held: torch.Tensor

    def __new__(cls, inner: torch.Tensor, *more: Any) -> Any:
        return wrapped(cls, inner)

    def __init__(self, inner: torch.Tensor, *more: Any) -> None:
        self.held = inner

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.held})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["held"], self._context()

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["held"], *(context or ()))

    def _context(self) -> Any:
        """The type's attributes beside its inner tensor: arguments
        of the class, after the first.
        """
        return None

    @classmethod
    def _rewrap(cls, result: torch.Tensor, given: list[Any]) -> Any:
        """Wrap a result of an operation on tensors ``given`` of this type."""
        return cls(result)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, cls)]
        plain = pytree.tree_map_only(cls, lambda t: t.held, (args, kwargs))
        result = func(*plain[0], **plain[1])
        out = pytree.tree_map_only(torch.Tensor, lambda t: cls._rewrap(t, given), result)
        return return_and_correct_aliasing(func, args, kwargs, out)


class Counted(Wrapper):
    """Counts the operations that led to it: its context differs from result to result."""

    def __init__(self, inner: torch.Tensor, depth: int = 0) -> None:
        super().__init__(inner)
        self.depth = depth

    def _context(self) -> Any:
        return (self.depth,)

    @classmethod
    def _rewrap(cls, result: torch.Tensor, given: list[Any]) -> Any:
        return cls(result, max(t.depth for t in given) + 1)


class Attached(Wrapper):
    """Has a tensor as its context, and cannot be detached: it supports one operation."""

    def __init__(self, inner: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__(inner)
        self.scale = scale

    def _context(self) -> Any:
        return (self.scale,)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is not aten.clone.default:
            raise NotImplementedError(func)
        return cls(args[0].held.clone(), args[0].scale)


class Labeled(Wrapper):
    """Carries a string, and joins the strings of its arguments."""

    def __init__(self, inner: torch.Tensor, label: str = "") -> None:
        super().__init__(inner)
        self.label = label

    def _context(self) -> Any:
        return (self.label,)

    @classmethod
    def _rewrap(cls, result: torch.Tensor, given: list[Any]) -> Any:
        return cls(result, "+".join(sorted({t.label for t in given})))


class Rows(Wrapper):
    """Has its number of rows in its context: a size."""

    def _context(self) -> Any:
        return (self.held.shape[0],)


class Swapping(Wrapper):
    """Holds another tensor after a write."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is not aten.mul_.Tensor:
            return super().__torch_dispatch__(func, types, args, kwargs)
        args[0].held = args[0].held * args[1]
        return args[0]


class Lower(Wrapper):
    """Has dtype float32 and holds bfloat16."""

    def __new__(cls, inner: torch.Tensor, *more: Any) -> Any:
        return wrapped(cls, inner, dtype=torch.float32)

    def __init__(self, inner: torch.Tensor) -> None:
        super().__init__(inner.to(torch.bfloat16))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        plain = pytree.tree_map_only(cls, lambda t: t.held.float(), (args, kwargs))
        if func in (aten.detach.default, aten.alias.default):
            return cls(args[0].held)
        result = func(*plain[0], **plain[1])
        wraps = isinstance(result, torch.Tensor) and result.dtype is torch.float32
        return cls(result) if wraps else result


class Sideways(Wrapper):
    """A matrix held transposed: its strides are not those of its inner tensor."""

    def __new__(cls, inner: torch.Tensor, *more: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape[::-1],
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=inner.requires_grad,
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.clone.default):
            return cls(func(args[0].held))
        plain = pytree.tree_map_only(cls, lambda t: t.held.t(), (args, kwargs))
        result = func(*plain[0], **plain[1])
        if isinstance(result, torch.Tensor) and result.ndim == 2:
            return cls(result.t().contiguous())
        return result


class Scaled(torch.Tensor):
    """A matrix of int8 with a scale per row: weights of a quantized linear layer, not trained.

    Operations run on the float32 values and return plain tensors; views of all of it stay.
    """

    data8: torch.Tensor
    scale: torch.Tensor

    def __new__(cls, data8: torch.Tensor, scale: torch.Tensor) -> Any:
        return wrapped(cls, data8, dtype=scale.dtype)

    def __init__(self, data8: torch.Tensor, scale: torch.Tensor) -> None:
        self.data8 = data8
        self.scale = scale

    @classmethod
    def of(cls, weight: torch.Tensor) -> Any:
        """``weight`` rounded to 127 steps to each side of zero per row."""
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def whole(self) -> torch.Tensor:
        """The values as float32."""
        return self.data8.to(self.scale.dtype) * self.scale

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Scaled({self.data8}, {self.scale})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["data8", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["data8"], inner["scale"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.clone.default, aten.t.default):
            same = cls(func(args[0].data8), func(args[0].scale))
            return return_and_correct_aliasing(func, args, kwargs, same)
        plain = pytree.tree_map_only(cls, lambda t: t.whole(), (args, kwargs))
        return func(*plain[0], **plain[1])


@torch.library.custom_op("tj_conformance::packed_mm", mutates_args=())
def packed_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A product of two matrices that autograd cannot differentiate."""
    return a @ b


@packed_mm.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


class Packed(Wrapper):
    """Multiplies by an operator without a derivative, in the backward too."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is not aten.mm.default:
            return super().__torch_dispatch__(func, types, args, kwargs)
        a, b = pytree.tree_map_only(cls, lambda t: t.held, args)
        return cls(packed_mm(a, b))


class Summing(Wrapper):
    """Overrides a method of PyTorch's."""

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        """PyTorch's sum plus 100."""
        return super().sum(*args, **kwargs) + 100


class Named(torch.Tensor):
    """A plain subclass: PyTorch's own ``__torch_function__``, and a method of its own."""

    def twice(self) -> Any:
        """Two times the tensor."""
        return self * 2


class Doubling(torch.Tensor):
    """A plain subclass that overrides an operator."""

    def __add__(self, other: Any) -> Any:
        return super().__add__(other) * 2


class Loud(torch.Tensor):
    """Overrides ``__torch_function__``: every sum is larger by one."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        return result + 1 if func in (torch.sum, torch.Tensor.sum) else result


class Opaque(torch.Tensor):
    """Has ``__torch_dispatch__``, and does not flatten."""

    held: torch.Tensor

    def __new__(cls, inner: torch.Tensor) -> Any:
        return wrapped(cls, inner)

    def __init__(self, inner: torch.Tensor) -> None:
        self.held = inner

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Opaque({self.held})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain = pytree.tree_map_only(cls, lambda t: t.held, (args, kwargs or {}))
        return func(*plain[0], **plain[1])
