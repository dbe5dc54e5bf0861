"""Imports in functions: each call finds the module that ``sys.modules`` has then.

Dynamo imports while it captures, and knows the module by a global, which nothing guards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from tj_torch.capture.dynamo.patches import is_pytorchs, replace_instruction
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["global_of", "guard_imports"]


def guard_imports(stack: ExitStack, noticed: Observations) -> None:
    """Guard the modules that statements of the program import."""
    from tj_torch.torch_private.dynamo import GlobalSource, InstructionTranslatorBase

    def importing(original: Callable[..., Any]) -> Callable[..., Any]:
        def instruction(self: Any, inst: Any) -> None:
            level, names = (v.as_python_constant() for v in self.stack[-2:])
            original(self, inst)
            if not is_pytorchs(self.f_code):
                name = _imported(self.f_globals, inst.argval, level, whole=not names)
                _guard(noticed.conditions(self.output), name)

        return instruction

    def naming(original: Callable[..., Any]) -> Callable[..., Any]:
        def import_source(self: Any, name: str) -> Any:
            module, scope = sys.modules.get(name), self.output.global_scope
            known = global_of(name)
            # A module of that name that was imported before, whose programs still are there.
            if module is not None and scope.get(known, module) is not module:
                return GlobalSource(self.output.install_global_by_id(known, module))
            return original(self, name)

        return import_source

    replace_instruction(stack, "IMPORT_NAME", importing)
    replace(stack, InstructionTranslatorBase, "import_source", naming)


def global_of(module: str) -> str:
    """Dynamo's name of the global that holds the module of a name."""
    return f"__import_{module.replace('.', '_dot_')}"


def _imported(scope: dict[str, Any], name: str, level: int, *, whole: bool) -> str:
    """Name of the module that a statement returns: with ``whole``, the first of ``a.b.c``."""
    if level:
        package = scope.get("__package__") or getattr(scope.get("__spec__"), "parent", "")
        name = resolve_name("." * level + name, package)
    return name.partition(".")[0] if whole else name


def _guard(conditions: Any, name: str) -> None:
    module = sys.modules.get(name)
    if isinstance(module, ModuleType) and name.partition(".")[0] != "torch":
        code = f"modules.get({name!r}) is {conditions.bind('m', ref(module))}()"
        text = f"sys.modules[{name!r}] is the same module"
        conditions.add(code, text, of_objects=False, modules=sys.modules)
