"""Tracing of regions, and their compilation by Inductor. The module imports all of Inductor."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import operator
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from tj_torch.internal import python_dispatcher

from tj_inductor.adapter.features import is_lost, need, ready
from tj_inductor.adapter.modules import Compiled
from tj_inductor.adapter.names import COPIES, EQUAL, LOW, ONEDNN, READS, STRIDES
from tj_inductor.adapter.settings import settings
from tj_inductor.adapter.vectors import try_few
from tj_inductor.constants import round_constants
from tj_inductor.formulas import existing, formulas
from tj_inductor.loops import is_in_loops

__all__ = ["compiled", "traced"]


def traced(run: Callable[..., Any], inputs: Sequence[Any], mode: Any) -> torch.fx.GraphModule:
    """Trace ``run`` to a graph of operators that Inductor has kernels for.

    For symbolic sizes, Python decompositions run in place of C++ code that would ask for numbers.
    """
    ready()
    from tj_inductor.adapter.names import make_fx, select_decomp_table

    with mode, python_dispatcher(mode.shape_env is not None):
        known = select_decomp_table()
        table = {**known, **formulas(known)}
        made: torch.fx.GraphModule = make_fx(run, decomposition_table=table, tracing_mode="real")(
            *inputs
        )
    round_constants(made.graph)  # outside of the mode: it computes elements
    if not is_lost(EQUAL):
        made.graph = _once(made.graph)
    made.recompile()
    return made


class _NegativeZero(float):
    """The number -0.0, which is equal to 0.0, as another type of number."""


def _once(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A graph that computes equal operators once; 0.0 is not taken for -0.0."""
    from tj_inductor.adapter.names import fx_graph_cse

    _replace(graph, lambda x: _NegativeZero(x) if _is_negative_zero(x) else x)
    found: torch.fx.Graph = fx_graph_cse(graph)
    _replace(found, lambda x: float(x) if isinstance(x, _NegativeZero) else x)
    return found


def _is_negative_zero(x: Any) -> bool:
    return isinstance(x, float) and x == 0 and math.copysign(1, x) < 0


def _replace(graph: torch.fx.Graph, by: Callable[[Any], Any]) -> None:
    """Replace the numbers among the arguments of calls."""
    for node in graph.nodes:
        if node.op == "call_function":
            node.args = torch.fx.node.map_aggregate(node.args, by)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, by)


def compiled(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    mode: Any,
    visible: Mapping[int, Sequence[int] | None],
    *,
    written: Mapping[int, int] = MappingProxyType({}),
    backward: bool,
) -> Compiled:
    """Compile ``graph`` with Inductor.

    ``visible`` maps outputs by place to the strides that they must have, None for those of the
    graph; other outputs have strides of Inductor's choice. ``written`` maps outputs to the inputs
    that they are written to, both by place.
    """
    ready()
    try_few()
    from tj_inductor.adapter.names import TracingContext, V, compile_fx_inner, tracing

    output = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    output.args = (tuple(_restride(graph, output, visible)),)
    _call_as_it_is(graph)
    output.meta["user_visible_output_idxs"] = list(visible)
    same = _in_one_place(output.args[0], written)
    _write(graph, output, written)
    _read_before(graph)
    context = TracingContext(mode)
    context.output_strides = []
    forced = {"force_layout_optimization": True} if _has_gradients_of_convolutions(graph) else {}
    with (
        tracing(context),
        V.set_fake_mode(mode),
        _asked(visible),
        settings(forced),
        _converting(),
    ):
        made: Any = compile_fx_inner(
            graph, list(inputs), is_backward=backward, static_input_idxs=()
        )
    # What checks and reports at each call is left out; the object keeps what is called alive.
    strides = context.output_strides or [None] * len(output.args[0])
    source = getattr(made, "source_code", "")
    called = getattr(made, "current_callable", None) or made
    return Compiled.of(called, source, map(_fixed, strides), same, whole=_is_whole(made))


@contextlib.contextmanager
def _converting() -> Iterator[None]:
    """Rename a parameter of vector conversions to the name that Inductor passes.

    PyTorch 2.10 passes another name than its method has, where it rounds to low precision.
    """
    if is_lost(LOW):
        yield
        return
    from tj_inductor.adapter.names import CppVecOverrides

    own: Any = vars(CppVecOverrides).get("to_dtype")
    if own is None or "use_compute_types" in inspect.signature(own.__func__).parameters:
        yield
        return

    def to_dtype(x: Any, dtype: Any, src_dtype: Any = None, use_compute_types: bool = True) -> Any:
        return own.__func__(x, dtype, src_dtype, use_compute_types)

    CppVecOverrides.to_dtype = staticmethod(to_dtype)
    try:
        yield
    finally:
        CppVecOverrides.to_dtype = own


def _write(graph: torch.fx.GraphModule, output: torch.fx.Node, written: Mapping[int, int]) -> None:
    """Let ``graph`` copy outputs to inputs, and return these instead, as Inductor knows it.

    Where nobody needs the old value any more, it computes the new one in place.
    """
    inputs = graph.graph.find_nodes(op="placeholder")
    found: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for i, place in written.items():
        with graph.graph.inserting_before(output):
            copied = graph.graph.call_function(
                torch.ops.aten.copy_.default, (inputs[place], found[i])
            )
        # Inductor reads the metadata of each node off `meta["val"]`, which `make_fx` alone sets.
        copied.meta["val"] = inputs[place].meta["val"]
        found[i] = inputs[place]
    output.args = (tuple(found),)


PUTS = (torch.ops.aten.index_put.default, *existing("_unsafe_index_put.default"))
"""Operators that write at indices, which Inductor computes meanwhile."""

WRITES = (
    *PUTS,
    torch.ops.aten.slice_scatter.default,
    torch.ops.aten.select_scatter.default,
    torch.ops.aten.diagonal_scatter.default,
    torch.ops.aten.as_strided_scatter.default,
    torch.ops.aten.copy_.default,
)
"""Operators that Inductor lets write to their first argument where nobody needs its old value."""


def _read_before(graph: torch.fx.GraphModule) -> None:
    """Copy what an operator of `WRITES` reads of its first argument, before it writes there.

    Inductor looks for later readers of the old value, not for those among the other arguments
    (`can_inplace` in torch/_inductor/fx_passes/reinplace.py, up to 2.15), and has removed copies
    that programs make: ``v[1:] = v[:-1].clone()`` would read what has just been written.
    """
    for node in graph.graph.nodes:
        if node.target not in WRITES:
            continue
        written = _copied(node.args[0])
        with graph.graph.inserting_before(node):

            def before(argument: torch.fx.Node, written: torch.fx.Node = written) -> torch.fx.Node:
                part = _value(_copied(argument)) == _value(written)
                return _cloned(argument) if part else argument

            def known(index: torch.fx.Node, written: torch.fx.Node = written) -> torch.fx.Node:
                # A mask becomes `where`, or a kernel of PyTorch's.
                mask = index.meta["val"].dtype in (torch.bool, torch.uint8)
                return _cloned(index) if not mask and _depends(index, written) else index

            first, second, *others = node.args
            second = torch.fx.node.map_arg(second, known if node.target in PUTS else before)
            node.args = (first, second, *torch.fx.node.map_arg(others, before))


def _cloned(argument: torch.fx.Node) -> torch.fx.Node:
    """A copy that Inductor makes where it stands in the graph."""
    need([READS])
    made = argument.graph.call_function(_extern(torch.ops.aten.clone.default), (argument,))
    made.meta["val"] = argument.meta["val"].clone()
    return made


def _depends(node: torch.fx.Node, value: torch.fx.Node) -> bool:
    """Test if ``node`` is computed from ``value`` or a copy of it."""
    same, seen, waiting = _value(value), set[torch.fx.Node](), [node]
    while waiting:
        last = waiting.pop()
        if _value(_copied(last)) == same:
            return True
        waiting += [x for x in last.all_input_nodes if x not in seen]
        seen.update(last.all_input_nodes)
    return False


def _has_gradients_of_convolutions(graph: torch.fx.GraphModule) -> bool:
    """Test for gradients of convolutions, for which Inductor has to be told to use channels_last.

    On CPUs it is its choice for convolutions, and it does not look for their gradients: what these
    get it copies into the order of dimensions that the gradient of the weight has.
    """
    called = graph.graph.find_nodes(op="call_function", target=CONVOLUTIONS[1])
    found = [node.args[i].meta["val"] for node in called for i in (0, 1)]
    on_cpu = bool(found) and all(value.device.type == "cpu" for value in found)
    return on_cpu and bool(torch.backends.mkldnn.enabled) and torch.backends.mkldnn.is_available()


CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)
"""Operators for which Inductor chooses the layout of values."""

LOOPS = (torch.ops.aten.copy.default, torch.ops.prims.convert_element_type.default)
"""Operators in loops of Inductor that regions do not have before they are traced."""


def _restride(
    graph: torch.fx.GraphModule, output: torch.fx.Node, visible: Mapping[int, Sequence[int] | None]
) -> list[Any]:
    """The outputs of ``graph``; what a user sees of convolutions is viewed with its strides.

    Other kernels of PyTorch get arguments with the strides of the graph, on which those of their
    results depend, as of a sort.
    """
    from tj_inductor.adapter.names import OpOverload

    found: Sequence[Any] = output.args[0]  # type: ignore[assignment]
    views: dict[Any, torch.fx.Node] = {}
    for i, strides in visible.items():
        node = found[i]
        made_by = node.args[0] if getattr(node, "target", None) is operator.getitem else node
        called = getattr(made_by, "target", None)
        if called in CONVOLUTIONS:
            views[node] = _viewed(graph, node, output, strides)
        elif isinstance(called, OpOverload) and called not in LOOPS and not is_in_loops(called):
            for arg in made_by.all_input_nodes:
                if arg.op == "call_function" and isinstance(arg.meta.get("val"), torch.Tensor):
                    made_by.replace_input_with(arg, _viewed(graph, arg, made_by))
    return [views.get(node, node) for node in found]


def _viewed(
    graph: torch.fx.GraphModule,
    node: torch.fx.Node,
    reader: torch.fx.Node,
    strides: Sequence[int] | None = None,
) -> torch.fx.Node:
    """``node``, or a view for ``reader`` if it has dimensions of size one.

    The stride of such a dimension is free for Inductor; others are asked for as they are.
    """
    value = node.meta["val"]
    shape, strides = tuple(value.shape), tuple(strides or value.stride())
    if 1 not in shape or not all(isinstance(n, int) for n in (*shape, *strides)):
        return node
    with graph.graph.inserting_before(reader):
        called = (node, shape, strides)
        view = graph.graph.call_function(torch.ops.aten.as_strided.default, called)
    view.meta["val"] = value.as_strided(shape, strides)
    return view


EMPTY = ("constants", "torchbind_constants", "frozen_param_names", "partition_maps")
EMPTY_TOO = ("inputs_to_check", "opaque_value_type_classes", "cudagraph_info")
"""Attributes that a compiled graph may have beside its text."""


def _is_whole(made: Any) -> bool:
    """Test if the text of a compiled graph, run as a module, makes the function that is called."""
    called = getattr(made, "current_callable", None)
    runs_module = type(getattr(called, "__self__", None)).__name__ == "Runner"
    more = any(getattr(made, name, None) for name in EMPTY + EMPTY_TOO)
    on_cpu = set(getattr(made, "device_types", ())) <= {"cpu"}
    return runs_module and on_cpu and not more and bool(getattr(made, "source_code", ""))


def _call_as_it_is(graph: torch.fx.GraphModule) -> None:
    """Let operators of oneDNN be calls in generated code, with the arguments that they have.

    They come from calls that another executor has claimed. Inductor's own patterns and lowerings
    for them count on weights that its passes have packed, and values inside of a graph get other
    strides where that suits a convolution. oneDNN takes 1,000 times as long for a product whose
    weight has gaps between its rows.
    """
    from tj_inductor.adapter.names import OpOverload

    for node in graph.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target.namespace == "mkldnn":
            need([ONEDNN])
            node.target = _extern(node.target)


@functools.cache
def _extern(operator: Any) -> Callable[..., Any]:
    """``operator`` for tensors; else its lowering to a call, as patterns put them in graphs."""
    from tj_inductor.adapter.names import V, fallback_handler

    lowering = fallback_handler(operator, add_to_fallback_set=False)

    def extern(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, torch.Tensor) for x in args):
            return operator(*args, **kwargs)
        if operator.name() == PRODUCT:
            weight = _without_gaps(args[1], V.graph.current_node.args[1])
            args = (args[0], weight, *args[2:])
        return lowering(*args, **kwargs)

    extern._inductor_lowering_function = True  # type: ignore[attr-defined]
    # From 2.14 on what it returns is asked of this where an argument's strides have changed.
    extern._inductor_lowering_output_metadata_fn = operator  # type: ignore[attr-defined]
    extern.__name__ = extern.__qualname__ = "extern_" + operator.name().replace("::", "_")
    return extern


PRODUCT = "mkldnn::_linear_pointwise"


def _without_gaps(value: Any, node: Any) -> Any:
    """Inductor's value of the matrix ``node``, without gaps between rows or columns."""
    from tj_inductor.adapter.names import ExternKernel

    traced = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(traced, torch.Tensor) or traced.layout is not torch.strided:
        return value
    columns, rows = traced.t().is_contiguous(), traced.is_contiguous()
    like = traced if columns or rows else traced.contiguous()
    return ExternKernel.require_exact_strides(value, like.stride())


def _in_one_place(outputs: Sequence[torch.fx.Node], written: Collection[int]) -> list[int]:
    """Places of outputs that are copies of an input, or of the same value as an earlier output.

    Outputs in ``written`` are left out: each is to be written to an input.

    Inductor removes copies, and may then return the input, or one tensor twice: it asks which
    outputs share memory before it removes the copies.
    """
    if is_lost(COPIES):
        return [index for index in range(len(outputs)) if index not in written]
    first = {_value(_copied(outputs[index])) for index in written}
    found = []
    for index, node in enumerate(outputs):
        if index in written:
            continue
        origin = _copied(node)
        if _value(origin) in first or getattr(origin, "op", None) == "placeholder":
            found.append(index)
        first.add(_value(origin))
    return found


def _value(node: torch.fx.Node) -> Hashable:
    """A key of the value of ``node``: several nodes may take one part of a call's results."""
    return node.args if node.target is operator.getitem else node


PLAIN = {
    torch.ops.aten.alias.default: (None, 0),
    torch.ops.aten.clone.default: (None, 0),
    torch.ops.aten.copy.default: (None, 1),
}
"""Operators that copy whatever their arguments are, as Inductor's registry has them."""


def _copies() -> Mapping[Any, tuple[Any, Any]]:
    """The operators that copy, or may: each with a test, and the place of what it copies."""
    if is_lost(COPIES):
        return PLAIN
    from tj_inductor.adapter.names import noop_registry

    found: Mapping[Any, tuple[Any, Any]] = noop_registry
    return found


def _copied(node: torch.fx.Node) -> torch.fx.Node:
    """The node that ``node`` is a copy or view of, as far as Inductor finds out; else itself."""
    copies = _copies()
    while True:
        if node.target is operator.getitem and _views(node.args[0]):
            node = node.args[0]  # type: ignore[assignment]
        target, index = node.target, 0
        if target in copies:
            _, index = copies[target]
        elif not _views(node):
            return node
        source = node.args[index] if isinstance(index, int) else _source(index, node)
        if not isinstance(source, torch.fx.Node):
            return node
        node = source


def _views(node: Any) -> bool:
    """Test if ``node`` is a view. Parts from ``unsafe_split`` are, though no schema says so."""
    target = getattr(node, "target", None)
    return isinstance(target, torch._ops.OpOverload) and bool(target.is_view)


def _source(index: Callable[[Any], Any], node: torch.fx.Node) -> Any:
    """The value that ``node`` is a copy of, as Inductor's registry tells it."""
    try:
        return index(node)
    except TypeError:  # up to 2.14 it asks the arguments, and a node has no items
        return index(node.args)


@functools.cache
def _strides_pass() -> Any:
    """A class of passes that ask for strides of outputs.

    The passes run after Inductor has noted the strides of the graph.
    """
    from tj_inductor.adapter.names import CustomGraphPass

    class Strides(CustomGraphPass):  # type: ignore[misc]
        def __init__(self, strides: Mapping[int, Sequence[int] | None]) -> None:
            self.strides = dict(strides)

        def __call__(self, graph: torch.fx.Graph) -> None:
            (output,) = graph.find_nodes(op="output")
            noted = list(output.meta["original_output_strides"])
            for i, strides in self.strides.items():
                noted[i] = noted[i] if strides is None else tuple(strides)
            output.meta["original_output_strides"] = noted

        def uuid(self) -> str:  # what Inductor keeps it would else find again for other strides
            return f"tj strides {sorted(self.strides.items())}"

    return Strides


def _asked(strides: Mapping[int, Sequence[int] | None]) -> contextlib.AbstractContextManager[Any]:
    """Request ``strides`` for the outputs of a graph that is compiled inside of the block."""
    if is_lost(STRIDES):
        need([STRIDES] if any(strides.values()) else [])
        return contextlib.nullcontext()
    from tj_inductor.adapter.names import config

    theirs = config.post_grad_custom_post_pass
    others = [*theirs] if isinstance(theirs, list | tuple) else [theirs]
    asked = _strides_pass()(strides)
    # The user's own pass runs, too, after this one.
    passes: Any = [asked, *others] if theirs else asked
    patched: contextlib.AbstractContextManager[Any] = config.patch(
        post_grad_custom_post_pass=passes
    )
    return patched


def _fixed(strides: Any) -> tuple[int, ...] | None:
    # Those of symbolic sizes come as expressions, and differ from call to call.
    if strides is None or not all(isinstance(n, int) for n in strides):
        return None
    return tuple(strides)
