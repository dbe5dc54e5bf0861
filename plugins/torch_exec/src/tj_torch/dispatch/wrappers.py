"""Modules that wrap another one and run around it: data parallelism in PyTorch's own classes.

Their ``forward`` talks to process groups, which no capture sees, and calls the model in between.
Jitting such a module compiles the inner one, and runs the wrapper's ``forward`` as in eager.

Rule table ``module_wrappers`` maps the dotted name of a class, whose rule subclasses share, to the
attribute with the inner module.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import RuleTable, Symbol

from tj_torch.dispatch.module import make_wrapper, wrap_module

if TYPE_CHECKING:
    from tj_torch.dispatch.module import Dispatching

__all__ = ["MODULE_WRAPPERS", "inner_attribute", "rules", "wrap_around"]

MODULE_WRAPPERS = "module_wrappers"
"""Name of the rule table."""


def rules() -> RuleTable[str]:
    """The rule table, empty: tj-distributed fills it."""
    return RuleTable(MODULE_WRAPPERS, rule_type=str)


def inner_attribute(module: Any, table: RuleTable[str]) -> str | None:
    """Attribute of ``module`` that has the module which it wraps; None if it wraps none."""
    if isinstance(module, torch.nn.Module):
        for cls in type(module).__mro__:
            package, _, rest = f"{cls.__module__}.{cls.__qualname__}".partition(".")
            rule = table.get(Symbol(package, rest))
            if rule is not None:
                return rule.value
    return None


def wrap_around(module: torch.nn.Module, attribute: str, dispatcher: Dispatching) -> Any:
    """Make the jitted ``module``, whose inner module ``dispatcher`` runs.

    The inner module is the user's for everybody but the wrapper's own call.
    """
    jitted = dispatcher.jitted
    inner = wrap_module(getattr(module, attribute), dispatcher)
    return make_wrapper(module, jitted, inner, _members(attribute))


class _Active(threading.local):
    """Inner modules of the wrappers that run in this thread, jitted, by the wrapper's identity."""

    def __init__(self) -> None:
        self.inner: dict[int, Any] = {}


_active = _Active()


@functools.cache
def _members(attribute: str) -> Mapping[str, Any]:
    """Members of a jitted wrapper's class: a call, and ``attribute``, the inner module."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        running, key = _active.inner, id(self)
        # The forward of a wrapper may call the wrapper again.
        before = running.get(key)
        running[key] = self._tj_call
        try:
            return torch.nn.Module.__call__(self, *args, **kwargs)
        finally:
            if before is None:
                del running[key]
            else:
                running[key] = before

    def read(self: Any) -> Any:
        # Only while this wrapper runs; everybody else gets the user's module.
        inner = _active.inner.get(id(self))
        return self._modules[attribute] if inner is None else inner

    def write(self: Any, value: Any) -> None:
        torch.nn.Module.__setattr__(self.__tj__.fn, attribute, value)

    member: Callable[..., Any] = call
    return {"__call__": member, attribute: property(read, write)}
