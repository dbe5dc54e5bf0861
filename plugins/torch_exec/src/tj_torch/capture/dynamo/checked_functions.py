"""Capture functions of PyTorch's that decide on data, where most data are of one kind.

Transformers compare their masks with a causal one; distributions see if a matrix is symmetric.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.checked_programs import (
    is_causal_mask,
    is_definite,
    is_semidefinite,
    is_symmetric,
)
from tj_torch.capture.dynamo.patches import is_nested, is_pytorchs
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["capture_checked"]


def capture_checked(stack: ExitStack, noticed: Observations) -> None:
    """Capture `tj_torch.capture.checked_programs` instead, until ``stack`` is left."""
    from torch.distributions import constraints

    from tj_torch.torch_private.dynamo import (
        UserFunctionVariable,
        UserMethodVariable,
        _detect_is_causal_mask,
    )

    found = {
        _detect_is_causal_mask: is_causal_mask,
        type(constraints.symmetric).check: is_symmetric,
        type(constraints.positive_semidefinite).check: is_semidefinite,
        type(constraints.positive_definite).check: is_definite,
    }
    # A user may have put another function in the place of one.
    programs = {f: program for f, program in found.items() if is_pytorchs(f.__code__)}

    def calling(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            program = programs.get(self.fn)
            if program is None or noticed.deferred is None or is_nested(tx):
                return original(self, tx, args, kwargs)
            args = [*self.self_args(), *args]
            return UserFunctionVariable(program).call_function(tx, args, kwargs)

        return call_function

    replace(stack, UserFunctionVariable, "call_function", calling)
    replace(stack, UserMethodVariable, "call_function", calling)
