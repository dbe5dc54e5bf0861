"""Break the graph where Python, or an index, needs a number that depends on data.

Dynamo breaks it at ``if n:`` for a condition, and has no handler for the error of a number. The
whole program, not the part after the break, would run as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.patches import is_nested, stop
from tj_torch.capture.dynamo.symbolic_indices import viewed
from tj_torch.torch_private.ops import depend_on_data
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["leave_undecided"]


def leave_undecided(stack: ExitStack, noticed: Observations) -> None:
    """Break the graph at ``if m.sum() > 3:``, a list of data, and an index ``x[:, n % 3]``.

    The decision of ``if len(x[mask]):`` is taken for most sizes, where the program can run as it is
    for the rest.
    """
    from tj_torch.torch_private.dynamo import (
        BuiltinVariable,
        SymNodeVariable,
        TensorVariable,
        symbolic_convert,
        utils,
    )

    if has(symbolic_convert, "guard_bool"):
        replace(stack, symbolic_convert, "guard_bool", _deciding)
        replace(stack, symbolic_convert, "guard_bool", _assuming(noticed, lambda asked: asked))
    replace(stack, SymNodeVariable, "evaluate_expr", _assuming(noticed, lambda v: v.sym_num))
    replace(stack, TensorVariable, "call_method", _deciding)  # `x[mask].tolist()`
    replace(stack, TensorVariable, "call_method", _numbering_writes)
    if has(TensorVariable, "mp_ass_subscript_impl"):
        replace(stack, TensorVariable, "mp_ass_subscript_impl", _numbering_stores)
    replace(stack, BuiltinVariable, "call_function", _numbering_reads)
    replace(stack, utils, "run_node", _indexing)


def _assuming(
    noticed: Observations, condition_of: Callable[[Any], Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Take conditions on sizes of data as for all sizes from two on, and assert their values."""

    def assuming(original: Callable[..., Any]) -> Callable[..., Any]:
        def decide(asked: Any, *rest: Any) -> Any:
            condition = condition_of(asked)
            if noticed.deferred is not None and _depends_on_data(condition):
                _assume(condition, noticed)
            return original(asked, *rest)

        return decide

    return assuming


def _assume(condition: Any, noticed: Observations) -> None:
    """Assert the value of ``condition`` for most sizes, if the program runs as it is for others."""
    from torch.fx.experimental.symbolic_shapes import expect_true

    from tj_torch.torch_private.dynamo import InstructionTranslator

    holds, tx = _for_most_sizes(condition), InstructionTranslator.current_tx()
    if holds is not None and noticed.defer(tx, f"it decides on a size, {condition}"):
        expect_true(condition if holds else torch.sym_not(condition))


def _depends_on_data(condition: Any) -> bool:
    return isinstance(condition, torch.SymBool) and depend_on_data([condition])


def _for_most_sizes(condition: Any) -> bool | None:
    """The value of ``condition`` for all sizes of data from two on; None if it has several."""
    from tj_torch.torch_private.shapes import GuardOnDataDependentSymNode, guard_size_oblivious

    try:
        return bool(guard_size_oblivious(condition))
    except GuardOnDataDependentSymNode:
        return None


def _deciding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Raise the error that Dynamo expects where it decides on a number."""
    from tj_torch.torch_private.dynamo import exc
    from tj_torch.torch_private.shapes import GuardOnDataDependentSymNode

    def decide(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except GuardOnDataDependentSymNode as error:
            raise exc.UserError(exc.UserErrorType.ANTI_PATTERN, str(error)) from None

    return decide


def _numbering_reads(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take ``x[i]`` for ``x[i.item()]``, as PyTorch does, where ``i`` is a computed integer.

    Fake tensors would make two symbols, of the index and of the place in memory, and Dynamo misses
    the first one in the result (2.14).
    """

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if self.fn is operator.getitem and len(args) == 2 and args[0].is_tensor():
            index = _index(tx, args[1])
            view = viewed(tx, args[0].realize(), index)
            if view is not None:
                return view
            args = [args[0], index]
        return original(self, tx, args, kwargs)

    return call_function


def _numbering_writes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take ``x[i] = y`` for ``x[i.item()] = y`` likewise."""

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == "__setitem__" and args:
            self, index = _target(tx, self, args[0])
            args = [index, *args[1:]]
        return original(self, tx, name, args, kwargs)

    return call_method


def _numbering_stores(original: Callable[..., Any]) -> Callable[..., Any]:
    """`_numbering_writes` from 2.14 on, where a statement has a slot."""

    def mp_ass_subscript_impl(self: Any, tx: Any, key: Any, value: Any) -> Any:
        if value is not None:  # else the item is deleted
            self, key = _target(tx, self, key)
        return original(self, tx, key, value)

    return mp_ass_subscript_impl


def _target(tx: Any, x: Any, index: Any) -> tuple[Any, Any]:
    """Variables of a tensor and an index that are written as ``x[index]`` is."""
    from tj_torch.torch_private.dynamo import ConstantVariable

    index = _index(tx, index)
    view = viewed(tx, x, index)
    return (x, index) if view is None else (view, ConstantVariable.create(...))


def _index(tx: Any, index: Any) -> Any:
    return _with_numbers(tx, index) if _takes_numbers(tx) else index.realize()


def _takes_numbers(tx: Any) -> bool:
    """Test if a graph may have numbers that depend on data; otherwise it breaks at ``item``.

    A function under `vmap`, or of an operation such as `flex_attention`, may not: its index may
    stand for many.
    """
    return not is_nested(tx) and bool(tx.output.shape_env.settings.allow_scalar_outputs)


def _with_numbers(tx: Any, index: Any) -> Any:
    from tj_torch.torch_private.dynamo import TensorVariable, TupleVariable

    index = index.realize()
    if isinstance(index, TupleVariable):
        items = [item.realize() for item in index.items]
        found = [_with_numbers(tx, item) for item in items]
        same = all(a is b for a, b in zip(items, found, strict=True))
        return index if same else TupleVariable(found)
    if type(index) is not TensorVariable:  # a subclass stands for a number of Python's or NumPy's
        return index
    node = index.as_proxy().node
    value = node.meta.get("example_value")
    is_number = isinstance(value, torch.Tensor) and not value.ndim and value.dtype in _INTEGERS
    return (
        index.call_method(tx, "item", [], {}) if is_number and node.op != "placeholder" else index
    )


_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
"""Data types of indices; `bool` and `uint8` are of masks."""


def _indexing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Break the graph at an index that depends on data, which fake tensors refuse."""

    def run_node(tracer: Any, node: Any, args: Any, *rest: Any) -> Any:
        try:
            return original(tracer, node, args, *rest)
        except IndexError:
            if node.target in (operator.getitem, operator.setitem) and any(_unbacked(args[1])):
                stop("an index that depends on data")
            raise

    return run_node


def _unbacked(index: Any) -> Iterator[bool]:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    for part in index if isinstance(index, tuple | list) else (index,):
        yield isinstance(part, torch.SymInt) and bool(free_unbacked_symbols(part))
