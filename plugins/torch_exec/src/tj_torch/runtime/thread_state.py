"""State of a thread in PyTorch and Python, which capture has to leave as it found it.

An error inside PyTorch may leave dispatch keys excluded or a level of `torch.func` entered; all
later operations of the thread would go wrong.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tj_torch.runtime.beside import is_beside
from tj_torch.runtime.modes import without_modes
from tj_torch.torch_private.runtime import (
    allow_saved_tensors_hooks,
    as_found_by_dispatcher,
    disabled_hooks_message,
    dispatch_keys,
    dispatch_mode_stack,
    entered_dual_level,
    function_mode_stack,
    leave_dual_levels,
    leave_levels,
    let_writes_change_requires_grad,
    level_depth,
    set_dispatch_mode_stack,
    set_forward_gradients,
    set_function_mode_stack,
    set_gradients,
    takes_forward_gradients,
    writes_may_change_requires_grad,
)

__all__ = [
    "FACTS",
    "Fact",
    "Observer",
    "changes",
    "kept",
    "observe",
    "own_facts",
    "restore",
    "snapshot",
]


@dataclass(frozen=True, slots=True)
class Fact:
    """One part of a thread's state, with functions that read and restore it.

    ``shared``: all threads of the process have one.
    """

    name: str
    read: Callable[[], Any]
    restore: Callable[[Any], None]
    shared: bool = False

    def is_as(self, found: Any) -> bool:
        """Test if the state equals ``found``, an earlier result of `read`."""
        return _same(self.read(), found)


def _same(a: Any, b: Any) -> bool:
    # `==` of tensors is a tensor, and a mode would see the call.
    if isinstance(a, torch.Tensor):
        with without_modes():
            return torch.equal(a, b)
    if isinstance(b, dict):  # sys.modules: new imports are no change
        return bool(b.items() <= a.items())
    if isinstance(a, list):  # modes and filters, which may define ==: compare identities
        return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _autocast() -> tuple[Any, ...]:
    devices = ("cpu", "cuda")
    modes = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    return (*modes, torch.is_autocast_cache_enabled())


def _set_autocast(found: tuple[Any, ...]) -> None:
    *modes, cached = found
    for device, enabled, dtype in modes:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cached)


def _random_state() -> torch.Tensor:
    with without_modes():  # a mode would see the call
        return torch.get_rng_state()


def _set_random_state(found: torch.Tensor) -> None:
    with without_modes():
        torch.set_rng_state(found)


def _numpy_state() -> Any:
    """State of NumPy's global generator in comparable form; None if NumPy is not imported."""
    generator = sys.modules.get("numpy.random")
    if generator is None:
        return None
    name, keys, *rest = generator.get_state()
    return (name, keys.tobytes(), *rest)


def _set_numpy_state(found: Any) -> None:
    if found is not None:
        name, keys, *rest = found
        # A list, since NumPy need not be imported here: `set_state` makes an array of it.
        words = [int.from_bytes(keys[i : i + 4], sys.byteorder) for i in range(0, len(keys), 4)]
        sys.modules["numpy.random"].set_state((name, words, *rest))


def _nothing(found: Any) -> None:
    """Restore nothing: observers learn of the change, but no caller can undo it."""


def _restore_filters(found: list[Any]) -> None:
    # In place: `warnings` and its accelerator in C share the list.
    warnings.filters[:] = found  # type: ignore[index]
    # Modules remember which warnings they have shown for the filters of a version.
    for name in ("_filters_mutated", "_filters_mutated_lock_held"):  # the second from 3.14 on
        getattr(warnings, name, lambda: None)()


FACTS = (
    Fact("levels of torch.func", level_depth, leave_levels),
    Fact("level of forward-mode AD", entered_dual_level, leave_dual_levels, shared=True),
    Fact("dispatch modes", dispatch_mode_stack, set_dispatch_mode_stack),
    Fact("function modes", function_mode_stack, set_function_mode_stack),
    Fact("grad mode", torch.is_grad_enabled, set_gradients),
    Fact("inference mode", torch.is_inference_mode_enabled, _nothing),
    Fact("forward gradients", takes_forward_gradients, set_forward_gradients),
    Fact("hooks on saved tensors", disabled_hooks_message, allow_saved_tensors_hooks),
    Fact(
        "writes that change requires_grad",
        writes_may_change_requires_grad,
        let_writes_change_requires_grad,
    ),
    Fact("autocast", _autocast, _set_autocast),
    Fact("default data type", torch.get_default_dtype, torch.set_default_dtype, shared=True),
    Fact("random numbers of PyTorch", _random_state, _set_random_state, shared=True),
    Fact("random numbers of Python", random.getstate, random.setstate, shared=True),
    Fact("random numbers of NumPy", _numpy_state, _set_numpy_state, shared=True),
    Fact("filters of warnings", lambda: list(warnings.filters), _restore_filters, shared=True),
    Fact("modules", sys.modules.copy, sys.modules.update, shared=True),
)
"""Facts in the order of their restoration; dispatch keys are restored after all of them."""

KEYS = "dispatch keys"

Observer = Callable[[tuple[str, ...]], None]

# The state is the thread's or the process's, whichever session captures.
_observers: list[Observer] = []
_keeping = threading.local()


def _facts() -> tuple[Fact, ...]:
    """Facts to be restored in this thread.

    A thread that compiles beside the program leaves alone what all threads share.
    """
    return own_facts() if is_beside() else FACTS


def own_facts() -> tuple[Fact, ...]:
    """The facts that each thread has for itself."""
    return tuple(fact for fact in FACTS if not fact.shared)


def snapshot() -> tuple[Any, ...]:
    """Read the state, for `changes`."""
    return (*(fact.read() for fact in _facts()), dispatch_keys())


def changes(found: tuple[Any, ...]) -> tuple[str, ...]:
    """Names of the facts that differ from the snapshot ``found``."""
    *values, keys = found
    names = [f.name for f, value in zip(_facts(), values, strict=True) if not f.is_as(value)]
    return (*names, KEYS) if keys != dispatch_keys() else tuple(names)


@contextlib.contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Call ``observer`` with the names of facts whenever `kept` sets back changes meanwhile."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restore the thread's state at exit; of several nested uses, the outermost does so."""
    if getattr(_keeping, "on", False):
        yield
        return
    found = snapshot()
    _keeping.on = True
    with as_found_by_dispatcher():
        try:
            yield
        finally:
            _keeping.on = False
            _set_back(found)


def restore(found: tuple[Any, ...]) -> tuple[str, ...]:
    """Set back what differs from the snapshot ``found``, but dispatch keys; return the names."""
    changed = changes(found)
    for fact, value in zip(_facts(), found, strict=False):
        if fact.name in changed:
            fact.restore(value)
    return changed


def _set_back(found: tuple[Any, ...]) -> None:
    changed = restore(found)
    for observer in _observers if changed else ():
        observer(changed)
