"""Higher-order operations in captured graphs: their operand graphs become regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from tj_core.extend import (
    Alias,
    BoundSymbol,
    CaptureError,
    Constant,
    Context,
    Effects,
    Proxy,
    Region,
    Symbol,
    TensorProxy,
    Trace,
    joined_effects,
    leaves,
    map_tree,
    requires_grad,
    same_metadata,
    summed_effects,
)

from tj_torch.capture.dynamo.applied import known
from tj_torch.eager.executor import SHARING

__all__ = ["Wiring", "bind_regions", "differentiable", "is_graph", "operation"]

Operands = list[Any]
"""What the inputs of a region are: a leaf of the call's arguments each, or `MADE`."""

MADE = object()
"""An input that the operation makes up: an element, a tangent, an index."""


def is_graph(value: Any) -> bool:
    """Whether ``value`` is an operand graph, as an argument."""
    return isinstance(value, Constant) and isinstance(value.value, torch.fx.GraphModule)


@dataclass(frozen=True, slots=True)
class Wiring:
    """How an operation calls its operand graphs.

    ``names`` are what its regions are called; ``operands`` gives, from the call's arguments, what
    the inputs of the n-th region are. ``returns``: which regions' outputs are the call's.
    ``carried``: the arguments that the leading outputs may be (of a loop that never runs).
    ``context`` is the one that the n-th region runs in, where that is not the call's.
    """

    names: tuple[str, ...]
    operands: Callable[[tuple[Any, ...], int], Operands]
    returns: tuple[str, ...] = ()
    carried: Callable[[tuple[Any, ...]], Operands] = lambda args: []
    context: Callable[[Context, tuple[Any, ...], int], Context] = lambda context, args, n: context


def _rest(start: int) -> Callable[[tuple[Any, ...], int], Operands]:
    return lambda args, n: list(leaves(args[start:]))


def _made(count: int, *more: Any) -> Operands:
    return [MADE] * count + list(leaves(more))


def _autocast(context: Context, args: tuple[Any, ...], n: int) -> Context:
    device, dtype, enabled, *_ = args
    key = f"autocast.{device}"
    if not enabled:
        return context if context.get(key) is None else context.with_(key, None)
    given = torch.get_autocast_dtype(str(device)) if dtype is None else dtype.value
    return context.with_(key, str(given).removeprefix("torch."))


def _of_function(context: Context, n: int) -> Context:
    """Where a Function runs its forward; its backward runs later, out of the forward's modes.

    Gradients may be on there after all.
    """
    off = {k: None for k, v in context.items if n and k.startswith("autocast.") and v}
    return Context.of(**off, grad=False).over(context)


_OP = "torch.ops.higher_order."

WIRINGS: Mapping[str, Wiring] = {
    "torch.utils.checkpoint.checkpoint": Wiring(("body",), _rest(1), ("body",)),
    "tj.invoke": Wiring(("body",), _rest(1), ("body",)),
    "tj.autograd_function": Wiring(
        ("forward", "backward"),
        lambda args, n: list(leaves(args[2:])) if n == 0 else [],
        ("forward",),
        context=lambda context, args, n: _of_function(context, n),
    ),
    _OP + "cond": Wiring(("true_fn", "false_fn"), _rest(3), ("true_fn", "false_fn")),
    _OP + "while_loop": Wiring(
        ("cond_fn", "body_fn"), _rest(2), carried=lambda args: list(leaves(args[2]))
    ),
    _OP + "scan": Wiring(
        ("combine_fn",),
        lambda args, n: [*leaves(args[1]), *_made(len(args[2])), *leaves(args[3])],
        carried=lambda args: list(leaves(args[1])),
    ),
    _OP + "associative_scan": Wiring(
        ("combine_fn",), lambda args, n: _made(2 * len(args[1]), *args[2:])
    ),
    _OP + "map_impl": Wiring(("fn",), lambda args, n: _made(len(args[1]), args[2])),
    _OP + "flex_attention": Wiring(
        ("score_mod", "mask_mod"),
        lambda args, n: _made(5 - n, args[7 + n]) if len(args) > 8 else [],
    ),
    _OP + "wrap": Wiring(("body",), _rest(1), ("body",)),
    _OP + "strict_mode": Wiring(("body",), _rest(1), ("body",)),
    _OP + "hints_wrapper": Wiring(("body",), _rest(1), ("body",)),
    _OP + "wrap_with_autocast": Wiring(("body",), _rest(5), ("body",), context=_autocast),
    _OP + "wrap_with_set_grad_enabled": Wiring(
        ("body",),
        _rest(2),
        ("body",),
        context=lambda context, args, n: context.with_("grad", bool(args[0])),
    ),
}
"""The operations whose regions tj understands. Others keep theirs, and count as side effects."""

UNKNOWN = Wiring((), lambda args, n: [])


def operation(call: BoundSymbol, node: torch.fx.Node) -> BoundSymbol:
    """``call`` under the name of what runs it, where that is not the captured operation itself.

    What PyTorch means for its compilers only is spelled as what users write; a graph that is
    reused is a call of it.
    """
    name = call.symbol.name.removeprefix("ops.higher_order.")
    if name == "tag_activation_checkpoint":
        return _checkpoint(call)
    if name == "invoke_subgraph":
        graph, _, *args = call.args
        return call.replace(symbol=Symbol("tj", "invoke"), args=(graph, *args))
    if name == "autograd_function_apply":
        return _autograd_function(call, node)
    return call


def _autograd_function(call: BoundSymbol, node: torch.fx.Node) -> BoundSymbol:
    """The indices under the names of what a Function is asked to do with them."""
    given = dict(call.kwargs)
    names = {
        "saved_for_backward_idx": "saved",
        "non_differentiable_idx": "non_differentiable",
        "dirty_idx": "dirty",
    }
    kwargs: dict[str, Any] = {new: tuple(given.pop(old, ())) for old, new in names.items()}
    if given:
        raise CaptureError(
            f"autograd.Function with {', '.join(given)}, of which tj does not know the meaning",
            source=call.source,
        )
    asked = known(node)
    if asked is None:
        raise CaptureError(
            "an autograd.Function of which capture does not say what its backward depends on",
            source=call.source,
        )
    kwargs["once"] = asked.once
    if asked.reads:
        kwargs["reads"] = Constant("_reads", asked.reads, named=False)
    symbol = Symbol("tj", "autograd_function")
    return call.replace(symbol=symbol, kwargs=tuple((k, v) for k, v in kwargs.items() if v))


def _checkpoint(call: BoundSymbol) -> BoundSymbol:
    graph = call.args[0].value
    kwargs = dict(call.kwargs)
    made = graph.meta.get("_checkpoint_context_fn")
    if made is not None:
        kwargs["context_fn"] = Constant("_context_fn", made, named=False)
    symbol = Symbol("torch", "utils.checkpoint.checkpoint")
    return call.replace(symbol=symbol, kwargs=tuple(kwargs.items()))


class Importing(Protocol):
    """What is asked of whoever turns graphs into traces."""

    def region(
        self, graph: torch.fx.GraphModule, name: str, operands: Operands, context: Context
    ) -> Trace:
        """The program of an operand graph."""

    def captured(self, call: BoundSymbol, node: torch.fx.Node) -> Any:
        """The outputs of ``call``, with their metadata from the capture."""


def bind_regions(call: BoundSymbol, node: torch.fx.Node, importing: Importing) -> BoundSymbol:
    """``call`` with regions for its operand graphs, its outputs, and the sum of their effects."""
    wiring = WIRINGS.get(call.symbol.qualname, UNKNOWN)
    count = iter(range(1 << 30))

    def bound(leaf: Constant) -> Any:
        if not is_graph(leaf):
            return leaf
        n = next(count)
        name = wiring.names[n] if n < len(wiring.names) else leaf.text
        operands = wiring.operands(call.args, n)
        context = wiring.context(call.context, call.args, n)
        program = importing.region(leaf.value, name, operands, context)
        places = tuple(_places(call, program, operands))
        return Region(program, places, name in wiring.returns)

    made = call.replace(
        args=map_tree(bound, call.args, Constant), kwargs=map_tree(bound, call.kwargs, Constant)
    )
    made = made.replace(outputs=importing.captured(call, node))
    if made.symbol.qualname in SHARING:
        outputs = map_tree(lambda p: differentiable(p, made), made.outputs, Proxy)
        made = made.replace(outputs=outputs)
    return made.replace(effects=_effects(made, wiring))


def _places(call: BoundSymbol, program: Trace, operands: Operands) -> Iterator[int | None]:
    """For each input of the program the argument it is, if it has the same metadata."""
    first = {p.name: i for i, p in reversed(list(enumerate(call.flat_args)))}
    for i, p in enumerate(program.inputs):
        operand = operands[i] if i < len(operands) else MADE
        if isinstance(operand, Proxy) and same_metadata(p, operand):
            yield first[operand.name]
        else:
            yield None


def differentiable(p: Proxy, call: BoundSymbol) -> Proxy:
    """An output of ``call`` that autograd may have an interest in counts as requiring a gradient.

    Captures do not always say so, and other executors must stay out of what is differentiated.
    """
    if not isinstance(p, TensorProxy):
        return p
    wanted = any(map(requires_grad, call.flat_args))
    on = call.context.get("grad") is not False and not call.context.get("inference")
    wanted = wanted and on and p.dtype.kind in ("float", "complex")
    return p.replace(requires_grad=wanted or p.requires_grad)


def _effects(call: BoundSymbol, wiring: Wiring) -> Effects:
    effects = summed_effects(call)
    if wiring is UNKNOWN:
        return joined_effects(effects, Effects(ordered=("side_effect",)))
    first = {p.name: i for i, p in reversed(list(enumerate(call.flat_args)))}
    carried = [
        Alias(out, "arg", first[p.name])
        for out, p in enumerate(wiring.carried(call.args))
        if isinstance(p, Proxy) and out < len(call.flat_outs)
    ]
    return joined_effects(effects, Effects(aliases=tuple(carried)))
