"""Calls that only PyTorch's autograd can differentiate: their graph is recorded at run time.

An operation that depends on data cannot run on fake tensors, so its backward is not known at
compile time. Its forward runs under PyTorch's autograd and returns the graph beside the results;
its backward runs that graph. Such a call is never decomposed, fused or recomputed.

Rule table ``recorded`` adds others, from plugins too. The value is the reason, a string.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tj_core.extend import (
    NO_TAGS,
    BoundSymbol,
    Change,
    Dim,
    Effects,
    NumberProxy,
    OpaqueProxy,
    Proxy,
    RuleTable,
    SubclassInfo,
    Subprogram,
    Symbol,
    TensorProxy,
    TjError,
    Trace,
    leaves,
    map_tree,
    reexpand_all,
    requires_grad,
    substituted,
)
from tj_torch.extend import Slot, resolve
from tj_torch.internal import backward_keeps_graph, constant

from tj_autograd.joint.build import Differentiated, JointScope, Slots, tangent
from tj_autograd.joint.functions import APPLY, has_own_backward

__all__ = ["RECORDED", "Graph", "backward", "forward", "recorded", "rules", "symbolic_power"]

RECORDED = "recorded"
"""Name of the rule table."""

POWERS = ("aten.pow.Tensor_Scalar", "aten.pow_.Scalar")


def rules() -> RuleTable[str]:
    """Make the table, with recurrent networks: their derivation grows with the sequence length."""
    table: RuleTable[str] = RuleTable(RECORDED, rule_type=str)
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        table.set(f"torch.{name}", "it is as many operations as its sequence is long")
    table.set("aten.mkldnn_rnn_layer.default", "its workspace is made where autograd records")
    return table


def symbolic_power(call: BoundSymbol) -> bool:
    """Check for a power whose exponent is a symbol.

    PyTorch 2.14 derives its gradient with the exponent as a tensor of the base's data type: in
    bfloat16 257 is 256, and the gradient of ``x ** 257`` has another sign. Before, there was none.
    """
    return call.symbol.qualname in POWERS and isinstance(call.args[1], NumberProxy)


# ---------------------------------------------------------------------------- what runs


@dataclass(frozen=True, slots=True)
class Graph:
    """Graph that PyTorch's autograd recorded of one call: its inputs and results."""

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


def forward(
    wrt: tuple[int, ...], fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[Any, Graph]:
    """Run ``fn(*args, **kwargs)`` under autograd; return its detached result and its graph.

    ``wrt`` are the positions, among the tensors in the arguments, of those to differentiate by.
    """
    count = iter(range(1 << 30))
    inputs: list[torch.Tensor] = []

    def argument(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        plain = value.detach()
        if next(count) in wrt:
            inputs.append(plain.requires_grad_())
        return plain

    args, kwargs = map_tree(argument, (args, kwargs))
    with torch.enable_grad():
        result = _plain(fn(*args, **kwargs))
    outputs = tuple(x for x in leaves(result) if isinstance(x, torch.Tensor))
    inside = getattr(fn, "namespace", None) == "higher_order"
    detached = _detached_view if inside else torch.Tensor.detach
    return map_tree(detached, result, torch.Tensor), Graph(tuple(inputs), outputs)


def _detached_view(result: torch.Tensor) -> torch.Tensor:
    """``result`` detached, as a view of a base if it is one.

    PyTorch's higher-order operators are custom Functions: a result that is a view (of `map`) is one
    outside, and must not be written in place.
    """
    base = result._base
    if base is None or base.dtype != result.dtype:
        return result.detach()
    return base.detach().as_strided(result.shape, result.stride(), result.storage_offset())


def _plain(result: Any) -> Any:
    """``result`` with named tuples as plain ones, as traces have it."""
    if isinstance(result, tuple | list):
        return (list if type(result) is list else tuple)(map(_plain, result))
    return result


def backward(
    graph: Graph,
    at: tuple[int, ...],
    strides: tuple[tuple[int, ...] | None, ...],
    *tangents: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Run the graph backward; return the gradient of each input, zeros where there is none.

    ``at`` are the positions, among the tensors in the results, that have ``tangents``. ``strides``
    are those that each gradient gets, None for those of a dense input. The graph is retained if
    that of the program is.
    """
    outputs = [graph.outputs[i] for i in at]
    kept = backward_keeps_graph()
    found = torch.autograd.grad(
        outputs, graph.inputs, list(tangents), retain_graph=kept, allow_unused=True
    )
    triples = zip(graph.inputs, found, strides, strict=True)
    return tuple(_laid_out(g, x, how) for x, g, how in triples)


def _laid_out(
    gradient: torch.Tensor | None, x: torch.Tensor, strides: tuple[int, ...] | None
) -> torch.Tensor:
    """``gradient`` of ``x`` with ``strides``; if these are None, those of ``x`` where it is dense,
    else contiguous.
    """
    if gradient is None and strides is None:
        return torch.zeros_like(x)
    if gradient is not None:
        if gradient.layout is not torch.strided:  # as of `embedding(sparse=True)`
            return gradient
        found = gradient.stride()
        if found == strides or (strides is None and found == x.stride() and _is_dense(x)):
            return gradient
        if type(gradient) is not type(x):
            x = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    if strides is not None:
        made = torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)
    else:
        kept = torch.preserve_format if _is_dense(x) else torch.contiguous_format
        made = torch.empty_like(x, memory_format=kept)
    if gradient is None:
        return made.zero_()
    return gradient if gradient.stride() == made.stride() else made.copy_(gradient)


def _is_dense(x: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense.default(x))


# ---------------------------------------------------------------------------- the calls


def recorded(
    call: BoundSymbol,
    slots: Slots,
    scope: JointScope,
    reason: str,
    without: Container[int] = (),
) -> Differentiated:
    """Differentiate ``call`` at run time, because of ``reason``.

    ``without`` are flat indices of arguments that are known to get no gradient.
    """
    candidates = (i for i, p in enumerate(call.flat_args) if requires_grad(p))
    wrt = tuple(i for i in candidates if i not in without)
    graph = OpaqueProxy(scope.namer(f"{call.label}_graph"), "tj_autograd.joint.recordings.Graph")
    effects = replace(
        call.effects, aliases=tuple(replace(a, identical=False) for a in call.effects.aliases)
    )
    fn = constant(resolve(call.symbol))
    if not fn.named:  # functions of two calls may have one text
        fn = replace(fn, text=scope.namer(fn.text))
    among = _among_tensors(wrt, call.flat_args)
    made = call.replace(
        symbol=Symbol("tj_autograd", "joint.recordings.forward"),
        args=(among, fn, *_as_operands(call.args)),
        kwargs=_as_operands(call.kwargs),
        outputs=(call.outputs, graph),
        body=None,
        effects=effects,
        parent=call.parent or call.label,
    )
    at = _among_tensors([slot.index for slot in slots], call.flat_outs)
    said = _strides(call, slots, scope)
    strides = tuple(said.get(i) for i in wrt)
    symbol = Symbol("tj_autograd", "joint.recordings.backward")
    back = scope.backward(call, symbol, graph, at, strides, *slots.values())
    kinds = _kinds(call)
    gradients = {i: _gradient(call.flat_args[i], scope) for i in wrt}
    gradients |= {i: p.replace(subclass=kinds[i]) for i, p in gradients.items() if i in kinds}
    gradients |= {i: p.replace(strides=said[i]) for i, p in gradients.items() if i in said}
    back = back.replace(outputs=tuple(gradients.values()))
    if has_own_backward(call):  # autograd runs users' backwards, used or not
        back = back.replace(effects=Effects(ordered=("side_effect",)))
    change = Change(call.label, "autograd", f"recorded: {reason}")
    return Differentiated(made, (back,), gradients, change)


def _strides(call: BoundSymbol, slots: Slots, scope: JointScope) -> dict[int, tuple[Dim, ...]]:
    """Strides of the gradients that a Function's backward returns for these tangents, by flat
    index.

    They are known for an `APPLY` call alone.
    """
    if call.symbol.qualname != APPLY:
        return {}
    found = {}
    gradients = _gradients(call.subprograms[1].program, slots, len(call.flat_outs), scope)
    for i, (p, g) in enumerate(zip(call.flat_args, gradients, strict=False)):
        if not isinstance(p, TensorProxy) or not isinstance(g, TensorProxy):
            continue
        numbers = all(isinstance(n, int) for n in (*g.shape, *g.strides))
        if numbers and (p.shape, p.dtype) == (g.shape, g.dtype):
            found[i] = g.strides
    return found


def _kinds(call: BoundSymbol) -> dict[int, SubclassInfo | None]:
    """Subclass metadata of the gradients that a Function's backward returns, by flat index.

    The gradient of a tensor subclass may be a plain tensor. Of calls other than `APPLY`, gradients
    have the subclass of the argument.
    """
    if call.symbol.qualname != APPLY:
        return {}
    pairs = enumerate(zip(call.flat_args, call.subprograms[1].program.outputs, strict=False))
    return {
        i: g.subclass
        for i, (p, g) in pairs
        if isinstance(p, TensorProxy) and isinstance(g, TensorProxy)
    }


def _gradients(program: Trace, slots: Slots, count: int, scope: JointScope) -> Sequence[Any]:
    """Outputs of a Function's backward for tangents with these strides; ``count`` is its number of
    results.

    Empty if a tangent is missing, or the backward cannot be expanded.
    """
    given = [slots.get(Slot("out", i)) for i in range(count)]
    env: dict[str, Any] = {}
    for p, q in zip(given, program.inputs, strict=False):
        if p is None or not isinstance(q, TensorProxy) or p.shape != q.shape:
            return ()
        if p.strides != q.strides:
            env[q.name] = q.replace(strides=p.strides)
    try:
        reexpand_all(program.calls, env, scope.expand, scope.tags)
    except TjError:
        return ()
    return substituted(program.outputs, env)  # type: ignore[no-any-return]


def _as_operands(tree: Any) -> Any:
    """``tree`` with subprograms marked as operands: they do not describe the call's results."""
    return map_tree(lambda subprogram: replace(subprogram, returns=False), tree, Subprogram)


def _among_tensors(indices: Iterable[int], proxies: Sequence[Proxy]) -> tuple[int, ...]:
    """Convert indices into ``proxies`` to indices into its tensors."""
    tensors = [i for i, p in enumerate(proxies) if isinstance(p, TensorProxy)]
    return tuple(tensors.index(i) for i in indices)


def _gradient(p: Proxy, scope: JointScope) -> TensorProxy:
    assert isinstance(p, TensorProxy)
    return tangent(p, scope.namer(f"grad_{p.name}")).replace(tags=NO_TAGS)
