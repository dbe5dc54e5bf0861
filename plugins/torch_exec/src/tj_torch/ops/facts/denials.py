"""Calls that must not run on fake tensors, where they would go wrong instead of raising.

Rule table ``denied``, open to plugins, maps the dotted path of a function to the reason.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from tj_core.extend import RuleTable, leaves
from torch.multiprocessing.reductions import StorageWeakRef

from tj_torch.ops.errors import CannotExpand, MakesSubclass
from tj_torch.ops.naming.paths import function_at
from tj_torch.runtime.subclasses import dense_tensors, is_wrapper_class
from tj_torch.torch_private.texts import LEVEL_MODULES, SYMBOLS_OF_VALUES

__all__ = ["DENIED", "Denied", "rules"]

DENIED = "denied"
"""Name of the rule table."""

_MEMORY = (
    "__array__ __dlpack__ backward data_ptr numpy register_hook retain_grad share_memory_ storage"
    " storage_offset tolist untyped_storage"
)
"""Methods that expose memory or values, which a fake tensor does not have."""

_STATEFUL = (
    "manual_seed seed set_default_device set_default_dtype set_float32_matmul_precision"
    " set_num_threads set_rng_state use_deterministic_algorithms"
)
"""Functions that change global state."""

_HOMES = ("torch", "torch.random", "torch.cuda", "torch.mps", "torch.mtia", "torch.xpu")


def rules() -> RuleTable[str]:
    """Reasons for PyTorch's functions."""
    table: RuleTable[str] = RuleTable(DENIED, rule_type=str)
    for name in _MEMORY.split():
        reason = f"Tensor.{name} looks at memory or at the autograd graph"
        table.set(f"torch.Tensor.{name}", reason)
    for name in _STATEFUL.split():
        for home in _HOMES:
            if function_at(f"{home}.{name}") is not None:
                table.set(f"{home}.{name}", f"torch.{name} changes the state of the process")
    for home in ("torch", "torch.Tensor"):  # the Python function lacks a check of eager's
        table.set(f"{home}.istft", "istft decides on data")
    return table


class Denied:
    """Denied functions of a table, with their reasons."""

    __slots__ = ("_reasons",)

    def __init__(self, table: RuleTable[str]) -> None:
        found = ((function_at(rule.key), rule.value) for rule in table)
        self._reasons = {fn: reason for fn, reason in found if fn is not None}

    def reason(self, fn: Callable[..., Any]) -> str | None:
        """Reason why ``fn`` must not run on fake tensors, None if it may."""
        module = str(getattr(fn, "__module__", ""))
        if module.startswith(LEVEL_MODULES):
            name = f"{module}.{getattr(fn, '__name__', '')}"
            return f"{name} works on the levels of torch.func, or on hooks of autograd"
        return self._reasons.get(fn) if isinstance(fn, Hashable) else None

    @contextlib.contextmanager
    def watching(
        self, fn: Callable[..., Any], given: Iterable[torch.Tensor] = (), *, wrappers: bool = True
    ) -> Iterator[None]:
        """Raise at denied calls inside of ``fn`` while it runs, unless it is PyTorch's own.

        ``storage_offset`` is allowed on tensors that ``fn`` has made, and denied on those that
        share memory with a tensor in ``given``; PyTorch may look for symbols in it.

        :raises CannotExpand: at the call.
        :raises MakesSubclass: without ``wrappers``, at a call on a wrapper subclass.
        """
        foreign = isinstance(fn, types.FunctionType | types.MethodType)
        # PyTorch's own functions are denied by name; inside they do on fakes what they are made
        # for.
        if not foreign or fn.__module__.partition(".")[0] == "torch":
            yield
            return
        with _watch(self, given, wrappers):
            yield


def _watch(denied: Denied, given: Iterable[torch.Tensor], wrappers: bool) -> Any:
    from torch.overrides import TorchFunctionMode

    def made(tensor: torch.Tensor) -> bool:
        memory = StorageWeakRef(tensor.untyped_storage())
        parts = (part for t in given for part in dense_tensors(t))
        return all(StorageWeakRef(t.untyped_storage()) != memory for t in parts)

    def asks_for_symbols() -> bool:
        # `Shard` does, from 2.13 on, before it takes its part of a tensor.
        return sys._getframe(2).f_globals.get("__name__") == SYMBOLS_OF_VALUES

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not wrappers:
                for kind in filter(is_wrapper_class, map(type, leaves(args))):
                    raise MakesSubclass(kind)
            # The offset of memory that the function has made does not depend on the caller.
            known = func is torch.Tensor.storage_offset and (asks_for_symbols() or made(args[0]))
            if not known and (reason := denied.reason(func)):
                raise CannotExpand(reason)
            return func(*args, **(kwargs or {}))

    return Watch()
