"""Equal modules of a container, such as the layers of a transformer, of which one is captured.

A module with parts that has several siblings of its class is captured as a region: see
`tj_torch.capture.dynamo.reused_regions` for when its record serves for a sibling. Afterwards the
regions are taken apart again (`equal_parts.flatten`): the graph is the same as without them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from tj_torch.capture.dynamo.equal_parts import MARK, Equals, is_region
from tj_torch.capture.dynamo.patches import is_nested
from tj_torch.capture.dynamo.reused_regions import dynamos_regions
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["correct"]

TRIALS = 3
"""Records of a class of which none has served again, after which no more are made."""

# Classes whose modules cannot be captured once, in this process: found in a capture.
_REFUSED: WeakSet[type] = WeakSet()


def correct(stack: ExitStack, noticed: Observations) -> None:
    """Capture equal modules as regions, in captures of whole programs."""
    from tj_torch.torch_private.dynamo import nn_module

    if dynamos_regions() is None:
        return

    def calling(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if noticed.equals is None or not _is_taken(self, tx, noticed.equals):
                return original(self, tx, args, kwargs)
            if not all(_is_known(value) for value in (*args, *kwargs.values())):
                return original(self, tx, args, kwargs)
            return _called(self, tx, args, kwargs, noticed)

        return call_function

    replace(stack, nn_module.UnspecializedNNModuleVariable, "call_function", calling)


def _is_taken(variable: Any, tx: Any, equals: Equals) -> bool:
    from tj_torch.torch_private.dynamo import nn_module

    kinds = (
        nn_module.UnspecializedNNModuleVariable,
        nn_module.UnspecializedBuiltinNNModuleVariable,
    )
    if type(variable) not in kinds or variable.source is None or is_nested(tx):
        return False
    return type(variable.value) not in _REFUSED and equals.has(variable.value)


def _is_known(value: Any) -> bool:
    """Test for an argument of which Dynamo can tell that it equals another call's."""
    from tj_torch.torch_private.dynamo import ListVariable, TupleVariable
    from tj_torch.torch_private.dynamo import invoke_subgraph as regions

    value = value.realize()
    if isinstance(value, ListVariable | TupleVariable):
        return all(map(_is_known, value.items))
    return regions.classify_vt(value) is not None


def _called(variable: Any, tx: Any, args: Any, kwargs: Any, noticed: Observations) -> Any:
    """The result of a call of a module, as a region.

    :raises RestartAnalysis: if it cannot be one; no module of its class is, from then on.
    """
    from tj_torch.torch_private.dynamo import (
        TorchHigherOrderOperatorVariable,
        UserFunctionVariable,
        exc,
    )

    equals = noticed.equals
    assert equals is not None
    kind = type(variable.value)
    before = noticed.records, noticed.reused
    try:
        outside = _outside(tx)
        region = TorchHigherOrderOperatorVariable.make(torch.ops.higher_order.invoke_subgraph)
        function = UserFunctionVariable(equals.function(kind))
        result = region.call_function(tx, [function, variable, *args], kwargs)
        closed = outside == _outside(tx)
    except (exc.RestartAnalysis, exc.SkipFrame):
        raise
    except Exception as error:  # whatever it is: captured plainly, it is the module's own or none
        _refuse(kind, str(error))
    made, served = noticed.records - before[0], noticed.reused - before[1]
    if not (made or served) or not closed:
        _refuse(kind, "it depends on more than its arguments and attributes")
    equals.made[kind] += made
    equals.served[kind] += served
    if equals.made[kind] >= TRIALS and not equals.served[kind]:
        _REFUSED.add(kind)
    node = next(n for n in reversed(tx.output.graph.nodes) if is_region(n))
    node.meta[MARK] = len(equals.modules)
    path = _PART.sub(r".\2", variable.get_nn_module_stack_source().name)
    equals.modules.append((variable.value, path))
    return result


_PART = re.compile(r"\._(?:modules|parameters|buffers)\[(['\"])([^'\"\]]+)\1\]")
"""A part of a module in the expression of a source, which Dynamo shortens in the same way."""


def _outside(tx: Any) -> tuple[int, int]:
    """Random numbers and sizes of data so far: a region must not make any."""
    return len(tx.output.random_calls), tx.output.shape_env.unbacked_symint_counter


def _refuse(kind: type, reason: str) -> None:
    from tj_torch.torch_private.dynamo import exc

    _REFUSED.add(kind)
    raise exc.UnspecializeRestartAnalysis(restart_reason=f"{kind.__name__}: {reason}") from None
