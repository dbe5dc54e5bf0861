"""Tensors at run time: metadata, contents and comparisons, for checks of kernels against traces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from tj_core.extend import Context, Proxy, TensorProxy
from tj_core.internal import RuntimeValues

from tj_torch.ops.values import constants
from tj_torch.ops.values.convert import device_to_torch, dtype_to_torch, tensor_proxy
from tj_torch.runtime.subclasses import is_wrapper, read_tensors
from tj_torch.torch_private.ops import set_conj, set_neg, storage_id
from tj_torch.torch_private.runtime import TorchDispatchMode, pytree

__all__ = ["VALUES"]

ROW = 8192
"""Words of 8 bytes per row; full rows are compared by their sums, the rest word by word."""


_SINGLE, _DOUBLE = (1.3e-6, 1e-5), (1e-7, 1e-7)
TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: _SINGLE,
    torch.float64: _DOUBLE,
    torch.complex64: _SINGLE,
    torch.complex128: _DOUBLE,
}
"""Relative and absolute tolerances by data type; other types are compared exactly."""


def observe(value: object) -> TensorProxy | None:
    """Metadata of a tensor as a proxy; None for any other value."""
    return tensor_proxy("result", value) if isinstance(value, torch.Tensor) else None


def memory(tensor: torch.Tensor) -> Hashable | None:
    """Identity of a tensor's storage; None for a tensor without elements."""
    return storage_id(tensor) if tensor.numel() else None


def mark(tensor: torch.Tensor) -> object:
    """Version and memory contents of a tensor, the latter as sums where it is large."""
    # "Inference tensors do not track version counter."
    version = None if tensor.is_inference() else tensor._version
    return version, _content(tensor)


def _content(tensor: torch.Tensor) -> object:
    if is_wrapper(tensor):
        return [*map(_content, read_tensors(tensor))]
    if not _has_bytes(tensor):
        return None
    start, memory = tensor.storage_offset() * tensor.itemsize, _bytes(tensor)
    with torch.no_grad():
        words, rest = memory[: len(memory) - len(memory) % 8], memory[len(memory) // 8 * 8 :]
        # The words start with the tensor, which need not be aligned to 8 bytes.
        words = words.view(torch.int64) if start % 8 == 0 else words.clone().view(torch.int64)
        rows = words[: len(words) - len(words) % ROW].view(-1, ROW).sum(1)
        return [*rows.tolist(), *words[len(rows) * ROW :].tolist(), *rest.tolist()]


def _has_bytes(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta and tensor.numel() > 0


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Memory from the first to the last element of a non-empty tensor, as uint8."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start, size = tensor.storage_offset() * tensor.itemsize, (last + 1) * tensor.itemsize
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage(), start, (size,), (1,))


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy of a tensor with its metadata and its whole storage, for absolute offsets into it."""
    if is_wrapper(tensor) or not _has_bytes(tensor):
        return tensor.detach().clone()
    with torch.no_grad():
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        memory = tensor.untyped_storage().clone()
        made.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.is_conj():
        set_conj(made)
    if tensor.is_neg():
        set_neg(made)
    return made


def differs(found: torch.Tensor, expected: torch.Tensor, steps: int = 1) -> str | None:
    """Report of the values of two tensors that are not close; None if all are.

    Tolerances are those of `torch.testing.assert_close`; the relative one also applies to the
    largest value, since sums in another order differ by as much even where terms cancel. They are
    multiplied by ``steps``, the number of successive operations that may have rounded.
    """
    if is_wrapper(expected):
        pairs = zip(read_tensors(found), read_tensors(expected), strict=True)
        return next((what for pair in pairs if (what := differs(*pair, steps)) is not None), None)
    # The difference of two float16 numbers would be rounded itself.
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = (t.detach().to_dense().to(wide) for t in (found, expected))
    distance, size = (a - b).abs(), b.abs()
    if expected.is_complex() or expected.is_floating_point():
        relative, absolute = (steps * t for t in TOLERANCES.get(expected.dtype, (0, 0)))
        largest = float(size.nan_to_num(0, 0, 0).max()) if size.numel() else 0
        close = distance <= max(absolute, relative * largest) + relative * size
        # `inf - inf` is NaN: equal infinities are close by `==` alone.
        equal = (a == b) | (a.isnan() & b.isnan()) | close
    else:
        equal = found == expected
    if equal.all():
        return None
    count = int(equal.logical_not().sum())
    return f"has other values: {count} of {equal.numel()}, by up to {float(distance.max()):.2g}"


def plain(value: Any) -> Any:
    """``value`` as kernels get it: a tensor is detached if it requires grad."""
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def example(p: Proxy) -> torch.Tensor | None:
    """Tensor with the metadata of ``p``: normally distributed floats, integers 0 or 1.

    None for tensor subclasses, and for layouts other than strided.
    """
    if not isinstance(p, TensorProxy) or p.subclass is not None or p.layout != "strided":
        return None
    shape, strides = ([int(str(n)) for n in dims] for dims in (p.shape, p.strides))
    spans = ((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    size = sum(spans) + 1 if 0 not in shape else 0
    generator = torch.Generator().manual_seed(0)
    dtype, device = dtype_to_torch(p.dtype), device_to_torch(p.device)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        memory = torch.randn(size, generator=generator, dtype=wide).to(dtype)
    else:
        memory = torch.randint(2, (size,), generator=generator).to(dtype)
    return memory.to(device).as_strided(shape, strides)


def laid_out(value: Any, strides: Sequence[int]) -> Any:
    """Tensor ``value`` with ``strides``: itself, or a copy."""
    if value.stride() == tuple(strides):
        return value
    made = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return made.copy_(value)


def records(context: Context) -> bool:
    """Test if autograd records calls in ``context``."""
    return not context.get("inference") and context.get("grad") is not False


def generators() -> object:
    """State of the CPU's generator, as bytes."""
    return bytes(torch.get_rng_state().tolist())


class _Draws(TorchDispatchMode):
    """Note of operators that draw from a default generator, on the thread that enters the mode."""

    seen = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` on the modes below."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            self.seen = True
        return func(*args, **kwargs)


def draws(run: Callable[[], Any]) -> bool:
    """Call ``run``; True if an operator that it calls on this thread draws random numbers."""
    mode = _Draws()  # type: ignore[no-untyped-call]
    with mode:
        run()
    return mode.seen


def other(tensor: torch.Tensor) -> torch.Tensor | None:
    """Copy of a tensor of floating-point numbers with half of each; None for other tensors."""
    floats = tensor.is_floating_point() or tensor.is_complex()
    if not floats or is_wrapper(tensor) or not _has_bytes(tensor):
        return None
    made = copy(tensor)
    with torch.no_grad():
        memory = made.as_strided((_span(made),), (1,), made.storage_offset())
        memory.mul_(0.5)
    return made


def _span(tensor: torch.Tensor) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def derived(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, list[torch.Tensor | None], dict[int, torch.Tensor]]:
    """Results of a function with tangents, and gradients of arguments by `id`, by autograd."""
    leaves = [x for x in pytree.tree_leaves((args, dict(kwargs))) if _is_differentiable(x)]
    with torch.inference_mode(False), torch.enable_grad():
        made = {id(x): x.detach().clone().requires_grad_() for x in leaves}
        swapped = pytree.tree_map(lambda x: made.get(id(x), x), (args, dict(kwargs)))
        results = function(*swapped[0], **swapped[1])
        outs = [y for y in pytree.tree_leaves(results) if isinstance(y, torch.Tensor)]
        tangents = [_tangent(y) if y.requires_grad else None for y in outs]
        given = [(y, t) for y, t in zip(outs, tangents, strict=True) if t is not None]
        if not given or not made:
            return results, tangents, {}
        found = torch.autograd.grad(
            [y for y, _ in given], [*made.values()], [t for _, t in given], allow_unused=True
        )
    pairs = zip(made, found, strict=True)
    plain_results = pytree.tree_map(plain, results)
    return plain_results, tangents, {key: g for key, g in pairs if g is not None}


def _is_differentiable(x: Any) -> bool:
    floats = isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
    return floats and not is_wrapper(x) and x.layout is torch.strided


def _tangent(y: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    wide = torch.complex128 if y.is_complex() else torch.float64
    return torch.randn(y.shape, generator=generator, dtype=wide).to(y.device, y.dtype)


VALUES = RuntimeValues(
    observe,
    memory,
    mark,
    copy,
    differs,
    plain,
    example,
    laid_out,
    constants.text,
    constants.of_text,
    records,
    generators,
    other,
    derived,
    draws,
)
"""PyTorch's functions on run-time values, for its dialect."""
