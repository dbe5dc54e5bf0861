"""Results that a call writes to a tensor that is not contiguous: ``torch.add(a, b, out=y.t())``.

Dynamo records such a call, and then breaks the graph, for a functionalization that tj does not use.
Adam with ``amsgrad=True`` makes one for each parameter that is not contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct"]

_BREAK = "Attempted to call op with non-contiguous `out=` tensor"
"""Name of the graph break in Dynamo."""


def correct(stack: ExitStack) -> None:
    """Go on after a call whose ``out`` is not contiguous."""
    from tj_torch.torch_private.dynamo import TorchInGraphFunctionVariable

    replace(stack, TorchInGraphFunctionVariable, "call_function", _calling)


def _calling(original: Callable[..., Any]) -> Callable[..., Any]:
    from tj_torch.torch_private.dynamo import exc

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        try:
            return original(self, tx, args, kwargs)
        except exc.Unsupported as error:
            if getattr(error, "gb_type", None) != _BREAK:
                raise
            # The call is in the graph, and has written to the fake tensor, which keeps its shape.
            error.remove_from_stats()
            return kwargs["out"]

    return call_function
