"""Ranges that a call unpacks: ``f(*range(3))`` gives the numbers 0, 1 and 2.

Dynamo gives the parts of the range, that is 0, 3 and 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import replace_instruction

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["INSTRUCTION", "correct"]

INSTRUCTION = "CALL_FUNCTION_EX"
"""The bytecode of a call that unpacks its arguments."""


def correct(stack: ExitStack) -> None:
    """Give a call the numbers of a range that it unpacks."""
    replace_instruction(stack, INSTRUCTION, _calling)


def _calling(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import RangeVariable, TupleVariable

    def call_unpacking(self: Any, instruction: Any) -> Any:
        # The arguments are on top, or below the keywords.
        for place in (-1, -2):
            given = self.stack[place].realize()
            if isinstance(given, RangeVariable):
                self.stack[place] = TupleVariable(given.unpack_var_sequence(self))
        return original(self, instruction)

    return call_unpacking
