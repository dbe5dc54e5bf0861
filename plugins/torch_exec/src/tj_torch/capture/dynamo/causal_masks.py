"""Capture `torch.nn.Transformer` and its parts with masks, which are compared with a causal one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.causal_program import is_causal_mask
from tj_torch.capture.dynamo.patches import is_nested
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["take_for_causal"]


def take_for_causal(stack: ExitStack, noticed: Observations) -> None:
    """Take a mask of the size of a causal one for causal, until ``stack`` is left.

    The captured program checks that. With another mask the program runs as it is
    (`tj_torch.capture.dynamo.refused_data`).
    """
    from tj_torch.torch_private.dynamo import UserFunctionVariable, _detect_is_causal_mask

    def calling(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            looks = self.fn is _detect_is_causal_mask
            if looks and noticed.deferred is not None and not is_nested(tx):
                self = UserFunctionVariable(is_causal_mask)
            return original(self, tx, args, kwargs)

        return call_function

    replace(stack, UserFunctionVariable, "call_function", calling)
