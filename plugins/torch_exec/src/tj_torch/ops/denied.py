"""Calls that must not run on fake tensors, because they would lie instead of raising."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tj_torch.ops.errors import CannotExpand

__all__ = ["denial", "watching"]

# Methods that hand out memory or values, which a fake tensor does not have.
_MEMORY = frozenset(
    [
        "__array__",
        "__dlpack__",
        "backward",
        "data_ptr",
        "numpy",
        "register_hook",
        "retain_grad",
        "share_memory_",
        "storage",
        "storage_offset",
        "tolist",
        "untyped_storage",
    ]
)

# Functions that change what the process does later.
_STATEFUL = frozenset(
    [
        "manual_seed",
        "seed",
        "set_default_device",
        "set_default_dtype",
        "set_float32_matmul_precision",
        "set_num_threads",
        "set_rng_state",
        "use_deterministic_algorithms",
    ]
)

# Functions whose Python decompositions lack a check on data that eager makes.
_UNCHECKED = frozenset(["istft"])

# Where the functions are that enter and leave a state in which operations mean something else.
_LEVELS = ("torch._C._autograd", "torch._C._functorch", "torch._functorch")


def denial(fn: Callable[..., Any]) -> str | None:
    """Why ``fn`` must not run on fake tensors; None if it may."""
    name, module = getattr(fn, "__name__", ""), str(getattr(fn, "__module__", ""))
    if name in _MEMORY and getattr(torch.Tensor, name, None) is fn:
        return f"Tensor.{name} looks at memory or at the autograd graph"
    if name in _STATEFUL and module.startswith("torch"):
        return f"torch.{name} changes the state of the process"
    if name in _UNCHECKED:
        return f"{name} decides on data"
    if module.startswith(_LEVELS):
        return f"{module}.{name} works on the levels of torch.func, or on hooks of autograd"
    return None


@contextlib.contextmanager
def watching(fn: Callable[..., Any]) -> Iterator[None]:
    """Raise for such calls inside ``fn`` while it runs, if it is not PyTorch's own.

    :raises CannotExpand: at the call.
    """
    foreign = isinstance(fn, types.FunctionType | types.MethodType)
    if not foreign or fn.__module__.partition(".")[0] == "torch":
        yield
        return
    with _watch():
        yield


def _watch() -> Any:
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if reason := denial(func):
                raise CannotExpand(reason)
            return func(*args, **(kwargs or {}))

    return Watch()
