"""Functions that cache results (`functools.lru_cache`), whose cache Dynamo ignores.

A call whose result is indistinguishable from a cached one is captured; others break the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import stop
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct"]


def correct(stack: ExitStack) -> None:
    """Break the graph at calls of such functions, unless pure and with constants only."""
    from tj_torch.torch_private.dynamo import SideEffects, WrapperUserFunctionVariable

    inside: list[str] = []

    def calling(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            name = _remembering(self)
            if name is None:
                return original(self, tx, args, kwargs)
            if not all(map(_is_constant, (*self.self_args(), *args, *kwargs.values()))):
                stop(f"{name} remembers results for what is no constant")
            before = _state(tx)
            inside.append(name)
            try:
                result = original(self, tx, args, kwargs)
            finally:
                inside.pop()
            if not _is_constant(result) or _state(tx) != before:
                stop(f"{name} remembers what is no constant, or depends on other things")
            return result

        return call_function

    def changing(original: Callable[..., Any]) -> Callable[..., Any]:
        def check_allowed_side_effect(self: Any, item: Any) -> Any:
            # An object of the caller's: a cached result would not change it a second time.
            if inside and item.source is not None:
                stop(f"{inside[-1]} remembers results, and has side effects")
            return original(self, item)

        return check_allowed_side_effect

    replace(stack, WrapperUserFunctionVariable, "call_function", calling)
    replace(stack, SideEffects, "check_allowed_side_effect", changing)


def _remembering(variable: Any) -> str | None:
    """Name of a user's function that caches results; None for any other."""
    wrapper = variable.wrapper_obj
    # `functools.lru_cache` and `functools.cache` set it; other wrappers keep nothing.
    if not hasattr(wrapper, "cache_info"):
        return None
    module = getattr(wrapper, "__module__", None) or ""
    return None if module.partition(".")[0] == "torch" else str(wrapper.__qualname__)


def _is_constant(variable: Any) -> bool:
    """Test for a constant that is no object which the program may change."""
    variable = variable.realize()
    return bool(variable.is_python_constant()) and variable.mutation_type is None


def _state(tx: Any) -> tuple[int, int]:
    """Number of graph nodes, and of guards on data, so far, those on default values aside."""
    guards = (g for g in tx.output.guards if "defaults__" not in g.name)
    data = sum(g.create_fn_name() not in _OF_CODE for g in guards)
    return len(tx.output.graph.nodes), data


_OF_CODE = frozenset(
    ("CLOSURE_MATCH", "FUNCTION_MATCH", "MODULE_MATCH", "ID_MATCH", "BUILTIN_MATCH", "CLASS_MATCH")
)
"""Guards on functions, classes and modules, which programs do not replace."""
