"""Capture `torch.distributions` with the checks of their arguments, which Dynamo switches off."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.checked_programs import broadcast_shapes
from tj_torch.capture.dynamo.patches import is_pytorchs, put_item
from tj_torch.capture.dynamo.result_caches import from_cache
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["capture_distributions"]


def capture_distributions(stack: ExitStack) -> None:
    """Capture what distributions call, in checks and for shapes, until ``stack`` is left."""
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
        (_dispatch_kl, _variable(UserFunctionVariable, _formula)),
        (torch.broadcast_shapes, _variable(UserFunctionVariable, _shape)),
    ):
        if is_pytorchs(function.__code__):  # else a user has put it in the place of PyTorch's
            put_item(stack, rules, function, how)
    classes = user_defined.UserDefinedClassVariable
    if has(classes, "resolve_cls_descriptor"):
        replace(stack, classes, "resolve_cls_descriptor", _sourced)


@cache  # Dynamo keeps all classes of variables
def _variable(base: Any, call: Callable[..., Any]) -> Any:
    """The class of a variable of a function that ``call`` is called for."""
    return type(f"_{call.__name__}", (base,), {"call_function": call})


def _formula(search: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """The formula that ``search`` finds: it compares classes, and has no tensors."""
    call = partial(search.fn, *(arg.as_python_constant() for arg in args))
    return from_cache(tx, call, call())


def _shape(broadcasting: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    """The shape as of a program, since Dynamo has an unknown call in the graph."""
    from tj_torch.torch_private.dynamo import UserFunctionVariable

    return UserFunctionVariable(broadcast_shapes).call_function(tx, args, kwargs)


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
