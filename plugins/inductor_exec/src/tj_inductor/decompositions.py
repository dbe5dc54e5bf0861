"""What is seen in the place of a softmax or a layer norm while saved values are chosen.

``aten._softmax`` is one call: either all of its result is saved, or all of it runs again, and with
it what reads whole rows. Made of a maximum, an exponential and a sum, the two numbers of a row are
saved, and the rest runs again inside of the kernel that needs it.

With ``m = max(x)`` and ``s = sum(exp(x - m))`` along the dimension: ``softmax(x) = exp(x - m) / s``
and ``log_softmax(x) = x - m - log(s)``. For a gradient ``g`` of the result ``y``: of a softmax,
``y * (g - sum(g * y))``; of a log_softmax, ``g - exp(y) * sum(g)``. Here ``exp(y)`` is the softmax:
where the backward reads that anyway, as for an entropy, it is not made a second time. That is one
value less to compute and, as Inductor has kernels write exponentials with two readers, to write.

``aten.native_layer_norm`` returns the statistics that its backward reads; made of a mean, a
variance and elementwise operations, its result runs again from these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tj_core.extend import (
    BoundSymbol,
    Editor,
    Replacement,
    RuleTable,
    Symbol,
    TensorProxy,
    storage_roots,
    value_names,
)

__all__ = ["decompositions"]

SOFTMAX, LOG_SOFTMAX = map(Symbol.parse, ("aten._softmax.default", "aten._log_softmax.default"))


def decompositions() -> RuleTable[Any]:
    """Rules of rewriting, by operator."""
    table: RuleTable[Any] = RuleTable("decompositions")
    table.set("aten._softmax.default", _softmax)
    table.set("aten._log_softmax.default", _log_softmax)
    table.set("aten.native_layer_norm.default", _layer_norm)
    table.set("aten._softmax_backward_data.default", _softmax_backward)
    table.set("aten._log_softmax_backward_data.default", _log_softmax_backward)
    return table


def _fits(*values: Any) -> bool:
    """Whether all are tensors in float32 or float64, with elements: others round in between."""
    return all(
        isinstance(p, TensorProxy)
        and p.dtype.name in ("float32", "float64")
        and p.shape
        and 0 not in p.shape
        for p in values
    )


class _Calls:
    """The calls in the place of ``call``, in order; they belong where it belongs."""

    def __init__(self, call: BoundSymbol, edit: Editor) -> None:
        self.call, self.edit = call, edit
        self.made: list[BoundSymbol] = []
        self.same = True

    def do(self, name: str, *args: Any, **kwargs: Any) -> TensorProxy:
        """The result of an operator."""
        made = self.edit.call(f"aten.{name}", *args, **kwargs)
        out = made.outputs.replace(requires_grad=self.requires_grad(made.outputs))
        self.made.append(made.replace(outputs=out))
        result: TensorProxy = out
        return result

    def named(self, out: TensorProxy, name: str, *args: Any) -> None:
        """Let an operator return ``out``, which the call returned."""
        made = self.edit.call(f"aten.{name}", *args, outputs=(out.name,))
        self.give(made, out)

    def last(self, name: str, *args: Any) -> Replacement | None:
        """The replacement, whose last operator returns what the call returned."""
        self.named(self.call.outputs, name, *args)
        return self.replacement()

    def renamed(self, value: TensorProxy, out: TensorProxy) -> Replacement | None:
        """The replacement, in which ``out``, which the call returned, is the last ``value``."""
        last = self.made.pop()
        assert last.outputs.name == value.name
        self.give(last, out)
        return self.replacement()

    def give(self, made: BoundSymbol, out: TensorProxy) -> None:
        """Let ``made`` return ``out``; they differ where results are laid out otherwise."""
        found = made.outputs.replace(name=out.name, tags=out.tags, requires_grad=out.requires_grad)
        self.same = self.same and found == out
        self.made.append(made.replace(outputs=out))

    def replacement(self) -> Replacement | None:
        """The calls so far, with the tags of the one whose place they take."""
        if not self.same:
            return None
        return Replacement(tuple(c.replace(tags=self.call.tags) for c in self.made))

    def requires_grad(self, out: TensorProxy) -> bool:
        return out.requires_grad and "BACKWARD" not in self.call.tags


Rule = Callable[[BoundSymbol, Editor], "Replacement | None"]


Finish = Callable[[_Calls, TensorProxy, TensorProxy, TensorProxy], "Replacement | None"]
"""What follows the shifted values, their exponentials and the sum of these."""


def _forward(finish: Finish) -> Rule:
    def rule(call: BoundSymbol, edit: Editor) -> Replacement | None:
        x, dim, half_to_float = call.args
        if half_to_float or not _fits(x):
            return None
        calls, dim = _Calls(call, edit), dim % len(x.shape)  # so that equal calls are equal
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


def _layer_norm(call: BoundSymbol, edit: Editor) -> Replacement | None:
    x, shape, weight, bias, epsilon = call.args
    out, mean, rstd = call.outputs
    if not _fits(x) or not all(
        p is None or (_fits(p) and p.dtype == x.dtype) for p in (weight, bias)
    ):
        return None
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    calls = _Calls(call, edit)
    variance = calls.do("var.correction", x, dims, correction=0, keepdim=True)
    calls.named(mean, "mean.dim", x, dims, True)
    calls.named(rstd, "rsqrt.default", calls.do("add.Tensor", variance, epsilon))
    value = calls.do("mul.Tensor", calls.do("sub.Tensor", x, mean), rstd)
    value = value if weight is None else calls.do("mul.Tensor", value, weight)
    value = value if bias is None else calls.do("add.Tensor", value, bias)
    return calls.renamed(value, out)


def _softmax_backward(call: BoundSymbol, edit: Editor) -> Replacement | None:
    grad, result, dim, _ = call.args
    if not _fits(grad, result):
        return None
    calls, dim = _Calls(call, edit), dim % len(grad.shape)
    product = calls.do("mul.Tensor", grad, result)
    total = calls.do("sum.dim_IntList", product, [dim], True)
    return calls.last("sub.Tensor", product, calls.do("mul.Tensor", result, total))


def _log_softmax_backward(call: BoundSymbol, edit: Editor) -> Replacement | None:
    grad, result, dim, _ = call.args
    if not _fits(grad, result):
        return None
    calls, dim = _Calls(call, edit), dim % len(grad.shape)
    total = calls.do("sum.dim_IntList", grad, [dim], True)
    powers = _softmax_beside(call, result, edit) or calls.do("exp.default", result)
    return calls.last("sub.Tensor", grad, calls.do("mul.Tensor", powers, total))


def _softmax_beside(call: BoundSymbol, result: TensorProxy, edit: Editor) -> TensorProxy | None:
    """The softmax of what ``result`` is the log_softmax of, if the program has one.

    One that another call of the backward reads: else to have it there could mean to save one more
    value, while ``result`` is often saved, or returned, anyway. And none that is returned, which
    the user may write to before the backward.
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
    """Whether two calls take the same tensor along the same dimension."""
    (x, dim, to_float), (other, other_dim, other_to_float) = a.args, b.args
    same = x.name == other.name and to_float == other_to_float
    return bool(same and (dim - other_dim) % len(x.shape) == 0)
