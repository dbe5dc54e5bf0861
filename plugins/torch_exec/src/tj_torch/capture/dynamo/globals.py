"""Make inlined functions use their own globals, not those of the module of the same name.

A module may be imported again, and code may run in any dict with any ``__name__``: Dynamo would
read, guard and write the globals of the module of that name, as first imported. Functions that
assign globals in a dict that is no module's are not captured.

Dynamo guards no global of Python's own modules, as ``os.environ`` where ``os.getenv`` reads it.
Here they are guarded, but for functions, classes and modules.

A builtin function is guarded as one, and that no global of its name has come to hide it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.own_methods import is_known
from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["correct", "guard_builtins", "may_change"]


def correct(stack: ExitStack) -> None:
    """Make functions that a program calls use their own globals, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import symbolic_convert

    translator = symbolic_convert.InliningInstructionTranslator
    if not has(translator, "get_globals_source_and_value"):
        return
    if clear := getattr(symbolic_convert._import_module, "cache_clear", None):
        clear()
    replace(stack, translator, "get_globals_source_and_value", _found)


def _found(original: Callable[..., Any]) -> Callable[..., Any]:
    def found(self: Any, name: str) -> Any:
        from tj_torch.torch_private.dynamo import (
            DictGetItemSource,
            GlobalSource,
            VariableBuilder,
            is_from_skip_guard_source,
        )

        if _is_a_modules(self.f_globals):
            module, variable, source = original(self, name)
            if is_from_skip_guard_source(source) and may_change(self.f_globals.get(name)):
                source = source.base
            return module, variable, source

        scope = self.f_globals
        source = GlobalSource(self.output.install_global_by_id("___unnamed_scope", scope))
        return scope, VariableBuilder(self, source)(scope), DictGetItemSource(source, name)

    return found


def may_change(value: Any) -> bool:
    """Test for data; Python's own functions and classes are not replaced."""
    return not isinstance(value, BuiltinFunctionType | FunctionType | ModuleType | type)


def _is_a_modules(scope: dict[str, Any]) -> bool:
    """Test if ``scope`` is the namespace of the module imported under its ``__name__``."""
    name = scope.get("__name__")
    if not isinstance(name, str) or name.startswith("namedtuple_") or "torch_package" in name:
        return isinstance(name, str)
    module = sys.modules.get(name)
    return module is not None and vars(module) is scope


def guard_builtins(stack: ExitStack, noticed: Observations) -> None:
    """Guard that no global hides a builtin function that the program calls."""
    from tj_torch.torch_private.dynamo import InstructionTranslatorBase

    def loading(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_builtin(self: Any, inst: Any) -> Any:
            name, scope = inst.argval, self.f_globals
            known = _is_a_modules(scope) and is_known(scope.get("__name__"))
            if _is_set(self, name):
                stop(f"the program has set a global {name}, which is a builtin")
            if not known:
                code = f"{name!r} not in {_dict_of(self)}"
                text = f"no global is named {name}"
                noticed.conditions(self.output).add(code, text, of_objects=False)
            return original(self, inst)

        return load_builtin

    replace(stack, InstructionTranslatorBase, "load_builtin", loading)


def _dict_of(interpreter: Any) -> str:
    """Code for the dict of the globals of a function that is captured."""
    output, scope = interpreter.output, interpreter.f_globals
    if output.global_scope is scope:
        return "G"
    if _is_a_modules(scope):
        return f"{interpreter.import_source(scope['__name__']).name}.__dict__"
    return f"G[{output.install_global_by_id('___unnamed_scope', scope)!r}]"


def _is_set(interpreter: Any, name: str) -> bool:
    """Test if the program has set a global that was not there before."""
    output, scope = interpreter.output, interpreter.f_globals
    if output.global_scope is scope:
        return name in interpreter.symbolic_globals
    owner = sys.modules.get(scope.get("__name__", "")) if _is_a_modules(scope) else scope
    variable = output.side_effects.id_to_variable.get(id(owner))
    return variable is not None and bool(
        output.side_effects.has_pending_mutation_of_attr(variable, name)
    )
