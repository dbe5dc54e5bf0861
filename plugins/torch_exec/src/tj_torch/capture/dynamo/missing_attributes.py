"""Guard that an attribute which a program has asked for in vain is still missing.

Dynamo guards what it reads, and not that an object, a module or a function lacks a name: it would
keep to the handler, or to the default of ``getattr``, once the attribute is there.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from tj_torch.capture.dynamo.computed_attributes import guard_absence, is_computed
from tj_torch.capture.dynamo.patches import replace_getattr, stop
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["guard_missing_attributes"]


def guard_missing_attributes(stack: ExitStack) -> None:
    """Guard each attribute that ``getattr`` does not find."""
    from tj_torch.torch_private.dynamo import ConstantVariable, InstructionTranslatorBase

    def loading(original: Callable[..., Any]) -> Callable[..., Any]:
        def _load_attr(self: Any, attribute: Any) -> Any:
            _guard(self.stack[-1], ConstantVariable.create(attribute))
            return original(self, attribute)

        return _load_attr

    def reading(tx: Any, args: list[Any], read: Callable[..., Any]) -> Any:
        _guard(*args[:2])
        return read(*args)

    if has(InstructionTranslatorBase, "_load_attr"):
        replace(stack, InstructionTranslatorBase, "_load_attr", loading)
    replace_getattr(stack, reading)


def _guard(variable: Any, name: Any) -> None:
    from tj_torch.torch_private.dynamo import TensorVariable

    variable, name = variable.realize(), name.realize()
    if not name.is_python_constant():
        return
    if isinstance(variable, TensorVariable):
        _guard_tensor(variable, name.as_python_constant())
        return
    # Of a list, `value` is a property, which computes it from the items.
    value = vars(variable).get("value", vars(variable).get("fn"))
    if value is None:
        return
    attribute = name.as_python_constant()
    if variable.source is None:
        if isinstance(value, enum.Enum) and not hasattr(value, attribute):
            stop(f"{type(value).__qualname__}.{value.name} may get an attribute")
        return
    if is_computed(value, attribute):  # by code that is traced, whose conditions are guarded
        guard_absence(variable, attribute)
        return
    read = getattr(type(value), "__getattr__", None)
    plain = type(value).__getattribute__ in _USUAL and read in (None, nn.Module.__getattr__)
    if not plain or isinstance(value, type) or hasattr(value, attribute):
        return  # of classes, lookups are guarded
    _install(variable, attribute)


def _guard_tensor(variable: Any, attribute: str) -> None:
    """Guard that an input has or lacks an attribute which the class of tensors does not have."""
    if variable.source is not None and not hasattr(variable.class_type, attribute):
        _install(variable, attribute)


def _install(variable: Any, attribute: str) -> None:
    """Guard that what ``variable`` is read from has the attribute, or lacks it, as it does now."""
    from tj_torch.torch_private.dynamo import AttrSource, GuardBuilder, install_guard

    if "attr" in inspect.signature(GuardBuilder.HASATTR).parameters:
        there = functools.partial(GuardBuilder.HASATTR, attr=attribute)
        install_guard(variable.source.make_guard(there))
    else:  # 2.10 and 2.11
        source = AttrSource(variable.source, attribute)
        install_guard(source.make_guard(GuardBuilder.HASATTR))


_USUAL: tuple[Any, ...] = tuple(t.__getattribute__ for t in (object, type(nn), type(_guard)))
