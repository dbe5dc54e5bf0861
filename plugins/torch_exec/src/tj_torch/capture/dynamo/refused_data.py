"""Capture programs that raise for some data: ``if not (scale > 0).all(): raise ValueError``.

Dynamo breaks the graph at each ``if`` on data. Where one of the branches always raises, the other
one is captured, with a check of the condition. For data that fails the check, the program runs as
it is, and raises by itself.
"""

from __future__ import annotations

import dis
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.checked_programs import is_causal_mask
from tj_torch.capture.dynamo.patches import replace_instruction
from tj_torch.runtime.checks import asserted
from tj_torch.torch_private.ops import depend_on_data

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["RAISES", "check_refused"]

RAISES = "it raises for some data"
"""The reason why a program runs as it is for such data, or has a graph break instead."""

_REASONS = {is_causal_mask.__code__: "a mask of its attention is not causal"}
"""Reasons for errors that the program does not raise itself, by the function that does."""

_JUMPS = {
    f"POP_JUMP{way}_IF_{truth}": truth == "TRUE"
    for way in ("", "_FORWARD", "_BACKWARD")
    for truth in ("TRUE", "FALSE")
}
"""Instructions that jump if the value on the stack is true or false, of all Pythons."""

_RAISES = ("RAISE_VARARGS", "RERAISE")
_LEAVES = ("RETURN_VALUE", "RETURN_CONST", "RETURN_GENERATOR", "YIELD_VALUE", "YIELD_FROM", "SEND")
_PROTECTS = ("SETUP_FINALLY", "SETUP_WITH", "SETUP_CLEANUP")
_ASSERTION = ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT", "LOAD_CONST")
_CALLS = ("NOT_TAKEN", "PUSH_NULL", "PRECALL", "CALL", "CALL_FUNCTION")
_ENDS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP")


def check_refused(stack: ExitStack, noticed: Observations) -> None:
    """Capture the branch that does not raise, until ``stack`` is left."""
    for name, jumps_if in _JUMPS.items():
        if name in dis.opmap:
            replace_instruction(stack, name, _jumping(noticed, jumps_if))


def _jumping(
    noticed: Observations, jumps_if: bool
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def jumping(original: Callable[..., Any]) -> Callable[..., Any]:
        def jump(tx: Any, instruction: Any) -> None:
            value = _decided(tx.stack[-1])
            jumps = None if value is None else _jumps(tx, instruction, value.is_tensor())
            reason = _REASONS.get(tx.f_code, RAISES)
            if jumps is None or not noticed.defer(tx, reason):
                original(tx, instruction)
                return
            tx.pop()
            _check(tx, value, jumps_if is jumps)
            if jumps:
                tx.jump(instruction)

        return jump

    return jumping


def _decided(value: Any) -> Any:
    """The variable of a tensor, or of a number that depends on data; None for other values."""
    from tj_torch.torch_private.dynamo import SymNodeVariable, TensorVariable

    if isinstance(value, SymNodeVariable):
        return value if depend_on_data([value.sym_num]) else None
    if not value.is_tensor():
        return None
    tensor = value.realize()
    return tensor if type(tensor) is TensorVariable else None  # a subclass has a truth of its own


def _check(tx: Any, value: Any, expected: bool) -> None:
    """Record a check that the truth of ``value`` is ``expected``."""
    from torch.fx.experimental.symbolic_shapes import expect_true

    if value.is_tensor():
        value = value if expected else value.call_method(tx, "logical_not", [], {})
    else:
        if not isinstance(value.sym_num, torch.SymBool):
            value = _number(tx, operator.ne, value, 0)
        value = value if expected else _number(tx, torch.sym_not, value)
        integers = all(symbol.is_integer for symbol in value.sym_num.node.expr.free_symbols)
        if integers and expect_true(value.sym_num):  # sizes may depend on it
            return  # Dynamo adds the check
    # Dynamo forgets what is expected of floats, and adds no check of what is known to be false.
    tx.output.create_proxy("call_function", asserted, (value.as_proxy(),), {})


def _number(tx: Any, function: Callable[..., Any], value: Any, *more: int) -> Any:
    """The variable of the number ``function(value, *more)``, a call in the graph."""
    from tj_torch.torch_private.dynamo import SymNodeVariable

    args = (value.as_proxy(), *more)
    return SymNodeVariable.create(tx, tx.output.create_proxy("call_function", function, args, {}))


def _jumps(tx: Any, instruction: Any, on_tensor: bool) -> bool | None:
    """Tell if the branch that ``instruction`` jumps to goes on, where the other one raises.

    None if both may go on, or none does, and for assertions on tensors with a text that is known
    (`tj_torch.capture.dynamo.asserts`).
    """
    following = tx.indexof[instruction] + 1
    if on_tensor and _is_plain_assertion(tx, following):
        return None
    handler = _handler(instruction)
    there = _always_raises(tx, tx.indexof[instruction.target], handler)
    here = _always_raises(tx, following, handler)
    return here if here is not there else None


def _is_plain_assertion(tx: Any, at: int) -> bool:
    """Test for the end of ``assert condition`` or ``assert condition, "text"``."""
    loads = []
    for found in tx.instructions[at:]:
        if found.opname.startswith("LOAD_"):
            loads.append(found.opname)
        elif found.opname not in _CALLS:
            break
    return (
        found.opname in _RAISES
        and loads[:1] in ([name] for name in _ASSERTION[:2])
        and all(name in _ASSERTION for name in loads)
    )


def _handler(instruction: Any) -> Any:
    """The first instruction of the handler around ``instruction``, from Python 3.11 on."""
    entry = instruction.exn_tab_entry
    return None if entry is None else entry.target


def _always_raises(tx: Any, at: int, handler: Any) -> bool:
    """Test if each way from the instruction at index ``at`` ends with an error.

    A branch with handlers or ``with`` statements of its own may go on after an error: False.
    """
    seen, left = set[int](), [at]
    while left:
        here = left.pop()
        if here in seen:
            continue
        seen.add(here)
        found = tx.instructions[here]
        if _handler(found) is not handler or found.opname in (*_LEAVES, *_PROTECTS):
            return False
        if found.opname in _RAISES:
            continue
        if found.target is not None:
            left.append(tx.indexof[found.target])
        if found.opname not in _ENDS:
            left.append(here + 1)
    return True
