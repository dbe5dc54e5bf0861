"""Calls of a `torch.autograd.Function`: its own forward and backward are the rule of the call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tj_core.codegen import generate
from tj_core.symbol import Body, BoundSymbol, Symbol
from tj_torch.dialect.derive import Derivation
from tj_torch.execute.function import autograd_function

__all__ = ["APPLY", "plain_call", "with_own_body"]

APPLY = "tj.autograd_function"
"""A captured call of a Function: its two halves as regions, then the arguments."""


def plain_call(call: BoundSymbol) -> tuple[BoundSymbol, Callable[..., Any]]:
    """``call`` of a Function without its regions, and what it runs: a Function made of these.

    Its positional arguments are left, so it has the values that the call has, in their order.
    """
    forward, backward, *args = call.args
    halves = [generate(region.program).function for region in (forward, backward)]
    symbol = Symbol("tj", "autograd_function.forward")
    plain = call.replace(symbol=symbol, args=tuple(args), kwargs=(), parent=call.label)
    return plain, functools.partial(autograd_function, *halves, **dict(call.kwargs))


def with_own_body(call: BoundSymbol, rule: Derivation) -> BoundSymbol:
    """A call that no name denotes, as ``rule`` says it runs; `plain_call` makes such."""
    body = rule.forward.body
    assert body is not None
    return call.replace(body=Body(body.inputs, body.calls, body.outputs[0], body.updates))
