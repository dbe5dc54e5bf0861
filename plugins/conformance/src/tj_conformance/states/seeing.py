"""Facts of modules, tensors and objects that two runs of a program are compared by."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

__all__ = ["Seen", "difference", "outside", "placed", "see", "see_error", "state_of"]

Seen = list[tuple[str, Any]]
"""Facts that a caller sees after a step, by name: plain values, tensors, tuples of these."""

_PLAIN = (int, float, str, complex, type(None), torch.dtype, torch.device)


def see_error(error: Exception) -> Any:
    """Type and first line of an error."""
    said = str(error).partition("\n")[0][:150]
    return type(error).__name__, re.sub(r"made_up_program_\d+|at 0x\w+", "", said)


def see(value: Any, depth: int = 0) -> Any:
    """Facts of ``value``, and of what it holds."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
        return type(value).__name__, repr(value)
    if depth > 4:
        return "and so on"
    if isinstance(value, dict):
        items = tuple((repr(k), see(v, depth + 1)) for k, v in value.items())
        return type(value).__name__, items
    if isinstance(value, list | tuple | collections.deque):
        return type(value).__name__, tuple(see(v, depth + 1) for v in value)
    if isinstance(value, set | frozenset):
        return type(value).__name__, tuple(sorted(map(repr, value)))
    return _object(value, depth)


def _object(value: Any, depth: int) -> Any:
    if isinstance(value, enum.Enum):
        return str(value)
    if dataclasses.is_dataclass(value) or type(value).__name__ in ("Box", "SimpleNamespace"):
        return type(value).__name__, see(vars(value), depth + 1)
    if type(value).__name__ == "Slots":
        slots = ((k, getattr(value, k)) for k in ("v", "t") if hasattr(value, k))
        return see(dict(slots), depth + 1)
    return "callable" if callable(value) else type(value).__name__


def _tensor(value: torch.Tensor) -> Any:
    facts = (
        *(type(value).__name__, value.dtype, tuple(value.shape)),
        tuple(value.stride()) if value.layout is torch.strided else None,
        *(value.requires_grad, value.is_leaf, value.grad_fn is not None, value.is_inference()),
    )
    return (*facts, value.detach().clone())


def placed(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters, buffers and other tensors of a module and its submodules, by their places."""
    found = []
    for path, part in module.named_modules(remove_duplicate=False):
        own = {k: v for k, v in vars(part).items() if not k.startswith("_")}
        own = {**part._parameters, **part._buffers, **own}
        for name, value in own.items():
            items: list[tuple[Any, Any]] = [("", value)]
            if isinstance(value, dict):
                items = [*value.items()]
            elif isinstance(value, list | tuple):
                items = [*enumerate(value)]
            tensors = ((k, v) for k, v in items if isinstance(v, torch.Tensor))
            found += [(f"{path}.{name}{k}", v) for k, v in tensors]
    return found


def state_of(module: nn.Module, here: Any, optimizer: Any) -> Iterator[tuple[str, Any]]:
    """State of a program after a step: of its module, its globals and its optimizer."""
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in (*part._parameters.items(), *part._buffers.items()):
            yield f"{path}.{name}", see(value)
            if isinstance(value, torch.Tensor) and value.is_leaf:
                yield f"{path}.{name}.grad", see(value.grad)
        for name, value in vars(part).items():
            if not name.startswith("_"):
                yield f"{path}.{name}", see(value)
    for name in ("G", "GT", "GD", "LOG"):
        yield name, see(vars(here).get(name, "deleted"))
    yield "names of the state", tuple(module.state_dict())
    yield "state of the optimizer", tuple(see(state) for state in optimizer.state.values())
    yield "gradients", torch.is_grad_enabled()


def difference(mine: Seen, theirs: Seen, tolerance: float) -> str:
    """The first difference of two steps, or an empty text."""
    for (name, got), (other, expected) in zip(mine, theirs, strict=False):
        if name != other:
            return f"{name}: {got} instead of {other}: {expected}"
        if not _same(got, expected, tolerance):
            return f"{name}: {got} instead of {expected}"
    return "" if len(mine) == len(theirs) else "another number of facts"


def _same(got: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor):
        return _close(got, expected, tolerance)
    if type(got) is not type(expected):
        return False
    if isinstance(got, list | tuple):
        pairs = zip(got, expected, strict=False)
        return len(got) == len(expected) and all(_same(a, b, tolerance) for a, b in pairs)
    return bool(got == expected)


def _close(got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if got.dtype in (torch.bfloat16, torch.float16):
        tolerance = max(tolerance, 3e-2)
    wide = torch.complex128 if got.is_complex() else torch.float64
    a, b = (t.to_dense().to(wide) for t in (got, expected))  # gradients of tables may be sparse
    finite = b.abs().nan_to_num(0, 0, 0)
    largest = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Put back the settings of PyTorch that a program may change."""
    anomaly = torch.autograd.set_detect_anomaly
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_anomaly_enabled()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    onednn = torch.backends.mkldnn.enabled
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_default_dtype(before[0])
        torch.set_grad_enabled(before[1])
        anomaly(before[2])
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.mkldnn.set_flags(onednn)  # allowed where PyTorch has frozen its flags
        torch.set_rng_state(state)
        if "extra_attr" in vars(nn.Linear):
            del nn.Linear.extra_attr  # type: ignore[attr-defined]
