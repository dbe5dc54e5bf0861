"""Bind operand graphs of higher-order operations in captured graphs as subprograms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from tj_core.extend import (
    Alias,
    BoundSymbol,
    CaptureError,
    Constant,
    Context,
    Effects,
    NumberProxy,
    Proxy,
    Subprogram,
    Symbol,
    TensorProxy,
    Trace,
    map_tree,
    requires_grad,
)
from tj_core.internal import joined_effects, same_metadata, size_expressions, summed_effects

from tj_torch.capture.dynamo.autograd_functions import known
from tj_torch.ops.facts.wiring import MADE, Operands, Wiring
from tj_torch.ops.sizes.program import symbols_in
from tj_torch.ops.sizes.shape_env import is_unbacked
from tj_torch.torch_private.ops import guarded_object

__all__ = [
    "bind_subprograms",
    "differentiable",
    "is_graph",
    "known_value",
    "operation",
    "sizes_of_data",
    "with_sizes",
]


def is_graph(value: Any) -> bool:
    """Test for an argument that is an operand graph."""
    return isinstance(value, Constant) and isinstance(value.value, torch.fx.GraphModule)


def known_value(operand: Any) -> tuple[Any, ...]:
    """A key of ``operand``, and itself, if it is a number, or an object that Dynamo guards.

    Such an object is a device mesh. The tuple is empty for other operands.
    """
    if isinstance(operand, Constant):
        return () if guarded_object(operand.value) is None else (Constant, operand)
    # 1 and True are equal, as are both zeros.
    return (type(operand), repr(operand), operand) if isinstance(operand, int | float) else ()


def sizes_of_data(operand: Any) -> tuple[str, ...]:
    """Sizes of ``operand``, as texts, if some of them depend on data; else an empty tuple."""
    if not any(map(is_unbacked, symbols_in(operand))):
        return ()
    return tuple(text for text, _ in size_expressions(operand))


def with_sizes(p: Proxy, operand: Proxy | None) -> Proxy:
    """Input ``p`` of an operand graph, with the sizes of ``operand`` if they depend on data.

    Dynamo gives a slice an unbacked symbol as its size; an expansion knows the size's expression.
    """
    made = p
    if operand is None or not sizes_of_data(p):
        return p
    if isinstance(p, TensorProxy) and isinstance(operand, TensorProxy):
        made = p.replace(shape=operand.shape, strides=operand.strides)
    elif isinstance(p, NumberProxy) and isinstance(operand, NumberProxy):
        made = p.replace(expr=operand.expr, hint=operand.hint)
    return made if same_metadata(made, operand) else p


def operation(call: BoundSymbol, node: torch.fx.Node) -> BoundSymbol:
    """``call`` under the symbol that runs it, where that is not the captured operation itself.

    Operations that PyTorch has for its compilers only become what the user wrote: a checkpoint, or
    a `torch.autograd.Function`. A reused graph becomes a plain call of it.

    :raises CaptureError: for a Function of which not all is known.
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
    """Call of `autograd_function` for a captured Function, with its indices renamed.

    :raises CaptureError: for unknown arguments, or if the backward's dependences are unknown.
    """
    given = dict(call.kwargs)
    names = {
        "saved_for_backward_idx": "saved",
        "non_differentiable_idx": "non_differentiable",
        "dirty_idx": "dirty",
    }
    kwargs: dict[str, Any] = {new: tuple(given.pop(old, ())) for old, new in names.items()}
    # Arguments of a later PyTorch: left out, they could change what is computed.
    if given:
        raise CaptureError(
            f"autograd.Function with {', '.join(given)}, of which tj does not know the meaning",
            source=call.source,
        )
    asked = known(node)
    if asked is None:
        raise CaptureError(
            "an autograd.Function for which the dependences of the backward are unknown",
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
        # Dynamo puts the function in the metadata of the operand graph, not among the arguments.
        kwargs["context_fn"] = Constant("_context_fn", made, named=False)
    symbol = Symbol("torch", "utils.checkpoint.checkpoint")
    return call.replace(symbol=symbol, kwargs=tuple(kwargs.items()))


class Importing(Protocol):
    """Interface of importers to `bind_subprograms`."""

    def subprogram(
        self, graph: torch.fx.GraphModule, name: str, operands: Operands, context: Context
    ) -> Trace:
        """Program of an operand graph."""

    def captured(self, call: BoundSymbol, node: torch.fx.Node) -> Any:
        """Outputs of ``call``, with their metadata from the capture."""


def bind_subprograms(
    call: BoundSymbol, node: torch.fx.Node, wiring: Wiring, importing: Importing
) -> BoundSymbol:
    """``call`` with subprograms for its operand graphs, their effects, and its outputs."""
    count = iter(range(1 << 30))

    def bound(leaf: Constant) -> Any:
        if not is_graph(leaf):
            return leaf
        n = next(count)
        name = wiring.names[n] if n < len(wiring.names) else leaf.text
        operands = wiring.operands(call.args, n)
        context = wiring.context(call.context, call.args, n)
        program = importing.subprogram(leaf.value, name, operands, context)
        places = tuple(_places(call, program, operands))
        return Subprogram(program, places, name in wiring.returns)

    made = call.replace(
        args=map_tree(bound, call.args, Constant), kwargs=map_tree(bound, call.kwargs, Constant)
    )
    made = made.replace(outputs=importing.captured(call, node))
    if wiring.plain:
        outputs = map_tree(lambda p: differentiable(p, made), made.outputs, Proxy)
        made = made.replace(outputs=outputs)
    return made.replace(effects=_effects(made, wiring))


def _places(call: BoundSymbol, program: Trace, operands: Operands) -> Iterator[int | None]:
    """Position of the argument for each input of the program; None if metadata differ."""
    first = {p.name: i for i, p in reversed(list(enumerate(call.flat_args)))}
    for i, p in enumerate(program.inputs):
        operand = operands[i] if i < len(operands) else MADE
        if isinstance(operand, Proxy) and same_metadata(p, operand):
            yield first[operand.name]
        else:
            yield None


def differentiable(p: Proxy, call: BoundSymbol) -> Proxy:
    """Output of ``call``, marked as requiring grad if autograd may differentiate it.

    Captures do not always mark it, and other executors must not take differentiated calls.
    """
    if not isinstance(p, TensorProxy):
        return p
    wanted = any(map(requires_grad, call.flat_args))
    on = call.context.get("grad") is not False and not call.context.get("inference")
    wanted = wanted and on and p.dtype.kind in ("float", "complex")
    return p.replace(requires_grad=wanted or p.requires_grad)


def _effects(call: BoundSymbol, wiring: Wiring) -> Effects:
    effects = summed_effects(call)
    if not wiring.known:
        return joined_effects(effects, Effects(ordered=("side_effect",)))
    first = {p.name: i for i, p in reversed(list(enumerate(call.flat_args)))}
    carried = [
        Alias(out, "arg", first[p.name])
        for out, p in enumerate(wiring.carried(call.args))
        if isinstance(p, Proxy) and out < len(call.flat_outs)
    ]
    return joined_effects(effects, Effects(aliases=tuple(carried)))
