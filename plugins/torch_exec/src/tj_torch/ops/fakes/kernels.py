"""Decompositions in Python that PyTorch runs in the place of its kernels, corrected.

With Python's dispatcher on, which composite operators need for symbolic sizes, some operators with
kernels are decomposed, too. The results are other ones: linear interpolation takes ``a + t (b -
a)``, which is NaN between infinities, and in float32 where the kernel for bytes computes in int16;
the margin loss counts labels behind the -1 that ends them; recurrent networks drop nothing between
their layers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

__all__ = ["CORRECTED", "in_place_of_python"]

Kernel = Callable[..., Any]


def _dropping(decomposition: Kernel) -> Kernel:
    """Make PyTorch's decomposition do as kernels where nothing is dropped, and where all is.

    Kernels return the input itself, and zeros without a random number; it returns a copy, and draws
    numbers.
    """

    def dropout(x: Any, p: float, train: bool | None) -> Any:
        if not train or p == 0:
            return x
        if p == 1:
            return x * torch.zeros((), dtype=x.dtype, device=x.device)
        return decomposition(x, p, train)

    return dropout


def _sized(operator: str) -> Callable[[Kernel], Kernel]:
    """Make an interpolation compute its size, and call the kernel ``operator``."""

    def corrected(decomposition: Kernel) -> Kernel:
        def interpolated(x: Any, size: Any, *more: Any) -> Any:
            *corners, factors = more
            if (size is None) == (factors is None):
                return decomposition(x, size, *more)  # which raises
            if size is None:
                size = [_times(n, f) for n, f in zip(x.shape[2:], factors, strict=True)]
            scales = [None] * len(size) if factors is None else factors
            return getattr(torch.ops.aten, operator).default(x, size, *corners, *scales)

        return interpolated

    return corrected


def _times(size: Any, factor: Any) -> Any:
    """``size`` times ``factor``, without what is behind the point; a product of integers if it can
    be, which symbols keep exact.
    """
    if isinstance(factor, float) and factor.is_integer():
        return size * int(factor)
    return torch.sym_int(size * factor)


def _layer_by_layer(decomposition: Kernel) -> Kernel:
    """Make a recurrent network drop between its layers, which the decomposition runs one by one."""

    def network(
        x: Any, states: Any, params: Any, biases: bool, layers: int, p: float, train: bool,
        both: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        if layers == 1 or not (train and p):
            return decomposition(x, states, params, biases, layers, p, train, both, batch_first)
        out = x.transpose(0, 1) if batch_first else x  # numbers are drawn for steps first
        directions, count = 1 + both, len(params) // layers
        ends = []
        for i in range(layers):
            out = torch.dropout(out, p, train) if i else out
            begin = _of_layer(states, i * directions, directions)
            own = params[i * count : (i + 1) * count]
            out, *end = decomposition(out, begin, own, biases, 1, 0.0, train, both, False)
            ends.append(end)
        out = out.transpose(0, 1) if batch_first else out
        return (out, *map(torch.cat, zip(*ends, strict=True)))

    return network


def _of_layer(states: Any, first: int, count: int) -> Any:
    """The part of one layer of the state of a network, or of the two states of an LSTM."""
    if isinstance(states, torch.Tensor):
        return states.narrow(0, first, count)
    return [state.narrow(0, first, count) for state in states]


CORRECTED: Mapping[str, Callable[[Kernel], Kernel] | None] = {
    "dropout.default": _dropping,
    **dict.fromkeys(
        ("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input"), _layer_by_layer
    ),
    **dict.fromkeys((
        "hardshrink.default", "softshrink.default", "multi_margin_loss.default",
        "multilabel_margin_loss_forward.default",
        "upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default",
        "_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default",
        "_upsample_nearest_exact3d.default", "upsample_bilinear2d.default",
        "upsample_bicubic2d.default",
    )),
    **{
        f"{name}.vec": _sized(name)
        for name in (
            "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
            "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
            "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
            "upsample_bicubic2d",
        )
    },
}  # fmt: skip
"""Changes of decompositions, by operator; None: the operator's own kernel, without one."""


@contextlib.contextmanager
def in_place_of_python(
    changes: Mapping[str, Callable[[Kernel], Kernel] | None],
) -> Iterator[None]:
    """Change PyTorch's decompositions in Python inside, as `CORRECTED` has it."""
    kept = []
    for name, change in changes.items():
        operator = _operator(name)
        if operator is None:
            continue
        known = _decompositions(operator)
        kept.append((operator, known))
        made = {} if change is None else {key: change(kernel) for key, kernel in known.items()}
        _put(operator, known, made)
    try:
        yield
    finally:
        for operator, known in reversed(kept):
            _put(operator, _decompositions(operator), known)


@functools.cache  # asked for each expansion
def _operator(name: str) -> Any:
    """The overload ``name`` of ATen; None where this PyTorch has none."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)


def _decompositions(operator: Any) -> dict[Any, Kernel]:
    """Decompositions of ``operator`` in Python, by dispatch key."""
    from tj_torch.torch_private.eager import DispatchKey

    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    return {key: operator.py_kernels[key] for key in keys if key in operator.py_kernels}


def _put(operator: Any, old: Mapping[Any, Kernel], new: Mapping[Any, Kernel]) -> None:
    for key in old:
        del operator.py_kernels[key]
    operator.py_kernels.update(new)
    operator._dispatch_cache.clear()
