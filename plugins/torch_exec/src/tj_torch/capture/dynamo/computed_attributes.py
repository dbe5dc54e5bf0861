"""Attributes that the program's own code computes: a property, or what ``__getattr__`` returns.

For ``hasattr`` Dynamo traces that code, and guards the answer by asking again: the code runs before
each call, too. For ``getattr`` with a default it traces the code twice. It does not guard that an
object still has no attribute of its own, for which nobody calls ``__getattr__``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import is_pytorchs, replace_getattr
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["compute_once", "dict_of", "guard_absence", "is_computed"]


def compute_once(stack: ExitStack) -> None:
    """Trace code that computes an attribute once for each time that the program asks."""
    _ask_once(stack)
    _read_once(stack)


def _ask_once(stack: ExitStack) -> None:
    """Leave out the guard by which ``hasattr`` would ask again."""
    from tj_torch.torch_private.dynamo import UserDefinedObjectVariable, user_defined

    asked: list[str] = []

    def installing(original: Callable[..., Any]) -> Callable[..., Any]:
        def install_guard(*guards: Any, **more: Any) -> None:
            # It is the first guard of the method below.
            if asked and any(_asks(guard, asked[-1]) for guard in guards):
                asked.pop()
                return
            original(*guards, **more)

        return install_guard

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_obj_hasattr(self: Any, tx: Any, name: str) -> Any:
            if self.source is not None and is_computed(self.value, name):
                guard_absence(self, name)
                asked.append(name)
            return original(self, tx, name)

        return call_obj_hasattr

    replace(stack, user_defined, "install_guard", installing)
    replace(stack, UserDefinedObjectVariable, "call_obj_hasattr", asking)


def _read_once(stack: ExitStack) -> None:
    """Let ``getattr`` with a default read what is computed, instead of asking for it first."""

    def reading(tx: Any, args: list[Any], read: Callable[..., Any]) -> Any:
        if len(args) < 3 or not _computes(*args[:2]):
            return read(*args)
        return _or_default(tx, args[2], functools.partial(read, *args[:2]))

    replace_getattr(stack, reading)


def guard_absence(variable: Any, name: str) -> None:
    """Guard that an object has no attribute of its own, which would be found first."""
    from tj_torch.torch_private.dynamo import GuardBuilder, InstructionTranslator, install_guard

    effects = InstructionTranslator.current_tx().output.side_effects
    if effects.has_pending_mutation_of_attr(variable, name):  # the program has set it
        return

    own = dict_of(variable.value)
    by_property = isinstance(inspect.getattr_static(type(variable.value), name, None), property)
    if own is not None and name not in own and not by_property:
        create = functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)
        install_guard(variable.source.make_guard(create))


def _asks(guard: Any, name: str) -> bool:
    """Test for a guard that reads attribute ``name``."""
    create = guard.create_fn
    if getattr(create, "func", create).__name__ != "HASATTR":
        return False
    # In 2.10 and 2.11 the attribute is that of the guard's expression.
    asked = getattr(create, "keywords", {}).get("attr") or guard.originating_source.member
    return bool(asked == name)


def _computes(variable: Any, name: Any) -> bool:
    """Test if ``variable`` is an object whose attribute ``name`` is computed."""
    from tj_torch.torch_private.dynamo import UserDefinedObjectVariable

    variable, name = variable.realize(), name.realize()
    known = isinstance(variable, UserDefinedObjectVariable) and name.is_python_constant()
    return known and is_computed(variable.value, name.as_python_constant())


def _or_default(tx: Any, default: Any, read: Callable[[], Any]) -> Any:
    from tj_torch.torch_private.dynamo import exc

    try:
        return read()
    except exc.ObservedAttributeError:
        exc.handle_observed_exception(tx)
        return default


def is_computed(value: object, name: str) -> bool:
    """Test if Python code computes attribute ``name`` of ``value``, and not PyTorch's."""
    kind, own = type(value), dict_of(value) or ()
    found = inspect.getattr_static(kind, name, None)
    if isinstance(found, property):
        return isinstance(found.fget, FunctionType)
    descriptor = type(found)
    if isinstance(inspect.getattr_static(descriptor, "__get__", None), FunctionType):
        return hasattr(descriptor, "__set__") or name not in own
    if found is not None or name in own:
        return False
    read = inspect.getattr_static(kind, "__getattr__", None)
    # `torch.ops` keeps what it has computed, and `nn.Module` computes nothing.
    return isinstance(read, FunctionType) and not is_pytorchs(read.__code__)


def dict_of(value: object) -> dict[str, Any] | None:
    """The attributes that an object has itself; None if it has no dict."""
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found
