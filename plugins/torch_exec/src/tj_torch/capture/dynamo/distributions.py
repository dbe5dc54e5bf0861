"""Capture `torch.distributions` with the checks of their arguments, which Dynamo switches off."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.result_caches import from_cache
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["capture_distributions"]


def capture_distributions(stack: ExitStack) -> None:
    """Capture what the checks and divergences of distributions call, until ``stack`` is left."""
    from torch.distributions.constraints import is_dependent

    from tj_torch.torch_private.dynamo import (
        UserFunctionVariable,
        _dispatch_kl,
        get_torch_obj_rule_map,
        user_defined,
    )

    rules = get_torch_obj_rule_map()
    for function, how in (
        (is_dependent, UserFunctionVariable),
        (_dispatch_kl, _search(UserFunctionVariable)),
    ):
        stack.callback(_put_back, rules, function, rules.get(function))
        rules[function] = how
    classes = user_defined.UserDefinedClassVariable
    if has(classes, "resolve_cls_descriptor"):
        replace(stack, classes, "resolve_cls_descriptor", _sourced)


@cache  # Dynamo keeps all classes of variables
def _search(base: Any) -> Any:
    """The class of a variable of the search for the formula of a divergence."""
    return type("_Search", (base,), {"call_function": _formula})


def _formula(search: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """The formula that ``search`` finds: it compares classes, and has no tensors."""
    call = partial(search.fn, *(arg.as_python_constant() for arg in args))
    return from_cache(tx, call, call())


def _put_back(rules: dict[Any, Any], function: Any, known: Any) -> None:
    if known is None:
        del rules[function]
    else:
        rules[function] = known


def _sourced(original: Callable[..., Any]) -> Callable[..., Any]:
    """Read a lazy property of a class in its ``__dict__``.

    As an attribute of the class it is another object each time, which guards cannot look into.
    """
    from torch.distributions.utils import lazy_property

    def resolve(self: Any, tx: Any, name: str, value: Any, source: Any) -> Any:
        if isinstance(value, lazy_property) and self.source is not None:
            return type(self).build(tx, value, self.get_source_by_walking_mro(tx, name))
        return original(self, tx, name, value, source)

    return resolve
