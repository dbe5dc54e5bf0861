"""Decompositions of softmax and of norms that apply while saved values are chosen.

``aten._softmax`` is one call: either all of its result is saved, or all of it runs again, with its
reductions over whole rows. Decomposed into a maximum, an exponential and a sum, the two numbers of
each row are saved, and the elementwise rest is recomputed inside of the kernel that reads it.

With ``m = max(x)`` and ``s = sum(exp(x - m))`` along the dimension: ``softmax(x) = exp(x - m) / s``
and ``log_softmax(x) = x - m - log(s)``. For a gradient ``g`` of the result ``y``: of a softmax, ``y
* (g - sum(g * y))``; of a log_softmax, ``g - exp(y) * sum(g)``. Here ``exp(y)`` is the softmax:
where the backward reads a softmax anyway, as for an entropy, it is used instead. That saves its
computation and, since Inductor writes an exponential with two readers to memory, the write.

``aten.native_layer_norm`` returns the statistics that its backward reads. Decomposed into a mean, a
variance and elementwise operations, its result is recomputed from these. A batch norm stays as it
is for its statistics, and elementwise operations make its result of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    Replacement,
    RuleTable,
    Symbol,
    TensorProxy,
    storage_roots,
    value_names,
)

__all__ = ["decompositions"]

BATCH_NORMS = (
    "aten._native_batch_norm_legit_functional.default",
    "aten._native_batch_norm_legit.no_stats",
    "aten.native_batch_norm.default",
)
"""Batch norms, which also return the statistics that their backward reads."""

NORMALISED = ("sub.Tensor", "mul.Tensor", "mul.Tensor", "add.Tensor")
"""Operators that apply mean, reciprocal of the deviation, weight and bias, as Inductor does."""

SOFTMAX, LOG_SOFTMAX = map(Symbol.parse, ("aten._softmax.default", "aten._log_softmax.default"))


def decompositions() -> RuleTable[Any]:
    """Make the rewriting rules, by operator."""
    table: RuleTable[Any] = RuleTable("decompositions")
    table.set("aten._softmax.default", _softmax)
    table.set("aten._log_softmax.default", _log_softmax)
    table.set("aten.native_layer_norm.default", _layer_norm)
    for name in BATCH_NORMS:
        table.set(name, _batch_norm)
    table.set("aten._softmax_backward_data.default", _softmax_backward)
    table.set("aten._log_softmax_backward_data.default", _log_softmax_backward)
    return table


def _fits(*values: Any) -> bool:
    """Check that all are non-empty float32 or float64 tensors: other types round in between."""
    return all(
        isinstance(p, TensorProxy)
        and p.dtype.name in ("float32", "float64")
        and p.shape
        and 0 not in p.shape
        for p in values
    )


class _Calls:
    """Builds the calls that replace ``call``, in order.

    ``same`` is false once a result differs in metadata from the one that it stands for.
    """

    def __init__(self, call: BoundSymbol, edit: CallEditor) -> None:
        self.call, self.edit = call, edit
        self.made: list[BoundSymbol] = []
        self.same = True

    def do(self, name: str, *args: Any, **kwargs: Any) -> TensorProxy:
        """Append a call of operator ``name``, and return its result."""
        made = self.edit.call(f"aten.{name}", *args, **kwargs)
        out = made.outputs.replace(requires_grad=self.requires_grad(made.outputs))
        self.made.append(made.replace(outputs=out))
        result: TensorProxy = out
        return result

    def named(self, out: TensorProxy, name: str, *args: Any) -> None:
        """Append a call of operator ``name`` whose result is ``out``, a result of the call."""
        made = self.edit.call(f"aten.{name}", *args, outputs=(out.name,))
        self.give(made, out)

    def last(self, name: str, *args: Any) -> Replacement | None:
        """Append the operator that returns the call's result, and make the replacement."""
        self.named(self.call.outputs, name, *args)
        return self.replacement()

    def renamed(self, value: TensorProxy, out: TensorProxy) -> Replacement | None:
        """Make the replacement, with the last result ``value`` renamed to ``out``, a result of the
        call.
        """
        last = self.made.pop()
        assert last.outputs.name == value.name
        self.give(last, out)
        return self.replacement()

    def give(self, made: BoundSymbol, out: TensorProxy) -> None:
        """Append ``made`` with the result ``out``, and note if the metadata differ."""
        found = made.outputs.replace(name=out.name, tags=out.tags, requires_grad=out.requires_grad)
        self.same = self.same and found == out
        self.made.append(made.replace(outputs=out))

    def replacement(self) -> Replacement | None:
        """The calls so far, with the tags of the replaced one; None
        if a result's metadata differ.
        """
        # As other strides: the calls after it have been expanded for those of the operator.
        if not self.same:
            return None
        return Replacement(tuple(c.replace(tags=self.call.tags) for c in self.made))

    def requires_grad(self, out: TensorProxy) -> bool:
        return out.requires_grad and "BACKWARD" not in self.call.tags


Rule = Callable[[BoundSymbol, CallEditor], "Replacement | None"]


Finish = Callable[[_Calls, TensorProxy, TensorProxy, TensorProxy], "Replacement | None"]
"""Makes the rest of a replacement from the shifted values, their
exponentials and the sum of these.
"""


def _forward(finish: Finish) -> Rule:
    def rule(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        x, dim, half_to_float = call.args
        # With `half_to_float` the result is wider than the argument: the parts would round in
        # between.
        if half_to_float or not _fits(x):
            return None
        calls, dim = _Calls(call, edit), dim % len(x.shape)  # so that equal calls are equal
        # Without the maximum, `exp` of float32 overflows from 89 on.
        shifted = calls.do("sub.Tensor", x, calls.do("amax.default", x, [dim], True))
        powers = calls.do("exp.default", shifted)
        return finish(calls, shifted, powers, calls.do("sum.dim_IntList", powers, [dim], True))

    return rule


_softmax = _forward(lambda calls, shifted, powers, total: calls.last("div.Tensor", powers, total))
_log_softmax = _forward(
    lambda calls, shifted, powers, total: calls.last(
        "sub.Tensor", shifted, calls.do("log.default", total)
    )
)


def _layer_norm(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
    x, shape, weight, bias, epsilon = call.args
    out, mean, rstd = call.outputs
    if not _fits(x) or not all(
        p is None or (_fits(p) and p.dtype == x.dtype) for p in (weight, bias)
    ):
        return None
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    calls = _Calls(call, edit)
    # Layer norm divides by the number of elements, `var` by one less unless told.
    variance = calls.do("var.correction", x, dims, correction=0, keepdim=True)
    calls.named(mean, "mean.dim", x, dims, True)
    calls.named(rstd, "rsqrt.default", calls.do("add.Tensor", variance, epsilon))
    value = calls.do("mul.Tensor", calls.do("sub.Tensor", x, mean), rstd)
    value = value if weight is None else calls.do("mul.Tensor", value, weight)
    value = value if bias is None else calls.do("add.Tensor", value, bias)
    return calls.renamed(value, out)


def _batch_norm(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
    x, weight, bias = call.args[:3]
    training = call.args[-3]
    out, mean, rstd, *running = call.outputs
    given = [p for p in (weight, bias) if p is not None]
    fits = _fits(x, *given) and all(p.dtype == x.dtype for p in given)
    if not training or not fits or not call.effects.removable:
        return None
    calls = _Calls(call, edit)
    # Its first result has no reader any more, so that its kernel does not compute it.
    unread = out.replace(name=edit.fresh(out.name))
    calls.made.append(call.replace(outputs=(unread, mean, rstd, *running)))
    channels = [1, -1, *(1 for _ in x.shape[2:])]  # the second dimension of the input
    value = x
    for name, p in zip(NORMALISED, (mean, rstd, weight, bias), strict=True):
        if p is not None:
            value = calls.do(name, value, calls.do("view.default", p, channels))
    return calls.renamed(value, out)


def _softmax_backward(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
    grad, result, dim, _ = call.args
    if not _fits(grad, result):
        return None
    calls, dim = _Calls(call, edit), dim % len(grad.shape)
    product = calls.do("mul.Tensor", grad, result)
    total = calls.do("sum.dim_IntList", product, [dim], True)
    return calls.last("sub.Tensor", product, calls.do("mul.Tensor", result, total))


def _log_softmax_backward(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
    grad, result, dim, _ = call.args
    if not _fits(grad, result):
        return None
    calls, dim = _Calls(call, edit), dim % len(grad.shape)
    total = calls.do("sum.dim_IntList", grad, [dim], True)
    powers = _softmax_beside(call, result, edit) or calls.do("exp.default", result)
    return calls.last("sub.Tensor", grad, calls.do("mul.Tensor", powers, total))


def _softmax_beside(call: BoundSymbol, result: TensorProxy, edit: CallEditor) -> TensorProxy | None:
    """Find a softmax of the tensor whose log_softmax is ``result``; None without one.

    It must be read by another call of the backward: otherwise it might be one more value to save,
    while ``result`` is often saved, or returned, anyway. And it must not be returned: the user may
    write to it before the backward.
    """
    calls = edit.trace.calls
    before = list(itertools.takewhile(lambda c: c.label != call.label, calls))
    makes = (c for c in before if c.symbol == LOG_SOFTMAX and c.outputs.name == result.name)
    made = next(makes, None)
    equal = [c.outputs for c in before if made and c.symbol == SOFTMAX and _of_equal(c, made)]
    if not equal:
        return None
    read = {p.name for c in calls if "BACKWARD" in c.tags for p in c.flat_args}
    roots = storage_roots(calls)
    returned = {roots.get(name) for name in value_names(edit.trace.outputs)}
    return next((p for p in equal if p.name in read and p.name not in returned), None)


def _of_equal(a: BoundSymbol, b: BoundSymbol) -> bool:
    """Check that two calls take the same tensor along the same dimension."""
    (x, dim, to_float), (other, other_dim, other_to_float) = a.args, b.args
    same = x.name == other.name and to_float == other_to_float
    return bool(same and (dim - other_dim) % len(x.shape) == 0)
