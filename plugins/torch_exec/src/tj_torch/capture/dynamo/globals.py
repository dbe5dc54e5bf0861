"""Make inlined functions use their own globals, not those of the module of the same name.

A module may be imported again, and code may run in any dict with any ``__name__``: Dynamo would
read, guard and write the globals of the module of that name, as first imported. Functions that
assign globals in a dict that is no module's are not captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct"]


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
        if _is_a_modules(self.f_globals):
            return original(self, name)
        from tj_torch.torch_private.dynamo import DictGetItemSource, GlobalSource, VariableBuilder

        scope = self.f_globals
        source = GlobalSource(self.output.install_global_by_id("___unnamed_scope", scope))
        return scope, VariableBuilder(self, source)(scope), DictGetItemSource(source, name)

    return found


def _is_a_modules(scope: dict[str, Any]) -> bool:
    """Test if ``scope`` is the namespace of the module imported under its ``__name__``."""
    name = scope.get("__name__")
    if not isinstance(name, str) or name.startswith("namedtuple_") or "torch_package" in name:
        return isinstance(name, str)
    module = sys.modules.get(name)
    return module is not None and vars(module) is scope
