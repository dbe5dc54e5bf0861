"""Decomposition of calls in which autocast casts values other than arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    PassContext,
    can_inline,
    inline,
    reexpand_all,
    requires_grad,
    without_grad,
)
from tj_torch.extend import TorchDialects, is_python, python_body, resolve, same_operators

__all__ = ["NotTheBody", "Opened", "functions", "operators"]


class NotTheBody(Exception):
    """A body must not take its call's place."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The calls that take a call's place, and the values there of its outputs, by name."""

    calls: tuple[BoundSymbol, ...]
    values: Mapping[str, Any]


def functions(
    call: BoundSymbol, dialects: TorchDialects, context: PassContext, fresh: Callable[[str], str]
) -> Opened:
    """Decompose ``call`` into the PyTorch functions that it calls; ``fresh`` gives names.

    :raises NotTheBody: if it is not written in Python.
    :raises CannotExpandError: if it does more than call these functions.
    """
    # A variant, such as a gradient or a functional form, is no function of PyTorch's.
    if call.body is None or call.symbol.variant:
        raise NotTheBody
    try:
        fn = resolve(call.symbol)
    except LookupError as error:
        raise NotTheBody from error
    if not is_python(fn):
        raise NotTheBody
    body = python_body(call, fn, dialects.names, dialects.memo.expander, dialects)
    opened = call.replace(body=body)
    if not can_inline(opened):
        raise NotTheBody
    made = inline(opened, fresh, context.tags)
    return Opened(made.calls, made.values)


def operators(
    call: BoundSymbol, dialects: TorchDialects, context: PassContext, fresh: Callable[[str], str]
) -> Opened:
    """Decompose ``call`` into the operators of its body; ``fresh`` gives names.

    :raises NotTheBody: if the gradient of the call is not that of the operators.
    """
    if call.body is None or not can_inline(call):
        raise NotTheBody
    made = inline(call, fresh, context.tags)
    env: dict[str, Any] = {p.name: p for p in call.flat_args if p != without_grad(p)}
    plain = (inner.map_proxies(without_grad) for inner in made.calls)
    calls = reexpand_all(plain, env, context.expand, context.tags)
    if any(map(requires_grad, call.flat_outs)) and not _has_its_gradients(call, calls, dialects):
        raise NotTheBody
    return Opened(calls, made.values)


def _has_its_gradients(
    call: BoundSymbol, calls: tuple[BoundSymbol, ...], dialects: TorchDialects
) -> bool:
    if any(c.context.get(k) != call.context.get(k) for c in calls for k in ("grad", "inference")):
        return False
    if call.symbol.functional:
        return False
    return same_operators(dialects.observed(call, dialects.modes()), calls)
