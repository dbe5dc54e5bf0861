"""Results of calls that are objects the program has already, such as those of ``x.add_(1)``.

Dynamo has a new variable for each result. Attributes that the program sets by the new one
(``p -= lr * p.grad; p.grad = None``) are lost, and those of the old one are not found by it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import OfGraph
from tj_torch.torch_private.replacement import replace
from tj_torch.torch_private.runtime import HigherOrderOperator

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct"]


def correct(stack: ExitStack) -> None:
    """Use one variable for each tensor, until ``stack`` is left."""
    from tj_torch.torch_private.dynamo import builder

    # By the id of a fake tensor: its variable, and the tensor, so that the id stays its own.
    known = OfGraph(dict[int, tuple[Any, Any]])

    def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrap_fx_proxy_cls(target_cls: Any, tx: Any, proxy: Any, *rest: Any, **kw: Any) -> Any:
            made = original(target_cls, tx, proxy, *rest, **kw)
            return _first(made, tx, known.of(tx.output))

        return wrap_fx_proxy_cls

    replace(stack, builder, "wrap_fx_proxy_cls", wrapping)
    stack.callback(known.forget)


def _first(made: Any, tx: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """The first variable of the tensor that ``made`` stands for, with its metadata of now."""
    from tj_torch.torch_private.dynamo import TensorVariable

    if not isinstance(made, TensorVariable):
        return made
    fake = made.as_proxy().node.meta.get("example_value")
    if fake is None:
        return made
    first, _ = known.setdefault(id(fake), (made, fake))
    if first is made or type(first) is not type(made) or not _takes(made, first):
        return made
    first.synchronize_attributes(tx)
    return first


def _takes(made: Any, given: Any) -> bool:
    """Test if the call that makes ``made`` takes ``given``, which is of the same graph then.

    The result of `cond` has the fake tensor of a branch's, and is another value.
    """
    node = made.as_proxy().node
    if node.target == "to_dense":  # Dynamo's fake of an MKL-DNN tensor is dense already
        return False
    if node.target is operator.getitem and len(node.all_input_nodes) == 1:  # one of several results
        (node,) = node.all_input_nodes
    if isinstance(node.target, HigherOrderOperator):
        # Dynamo gives the variables inside of such a call the results: one that is an argument
        # which a Function wrote (`mark_dirty`) stands for the result from then on.
        return False
    return given.as_proxy().node in node.all_input_nodes
