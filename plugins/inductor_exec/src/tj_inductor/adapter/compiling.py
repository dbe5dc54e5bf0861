"""Tracing of regions, and their compilation by Inductor. The module imports all of Inductor."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tj_torch.internal import python_dispatcher, tracing_alone

from tj_inductor.adapter.calls import CONVOLUTION, call_as_it_is, laid_out_call
from tj_inductor.adapter.copies import in_one_place
from tj_inductor.adapter.features import is_lost, need, ready
from tj_inductor.adapter.layouts import (
    BACKWARD,
    has_images,
    is_of_images,
    join_by_pixels,
    layouts_of_images,
)
from tj_inductor.adapter.modules import Compiled
from tj_inductor.adapter.names import EQUAL, FAST, LOW, STRIDES
from tj_inductor.adapter.priority import lower_priority
from tj_inductor.adapter.propagation import exact_propagation
from tj_inductor.adapter.readers import in_one_loop
from tj_inductor.adapter.repairs import by_twos, copy_joined
from tj_inductor.adapter.rows import vectors_along_rows
from tj_inductor.adapter.settings import settings
from tj_inductor.adapter.vectors import try_few
from tj_inductor.adapter.writes import known_memory, read_before, write
from tj_inductor.constants import round_constants
from tj_inductor.formulas import formulas
from tj_inductor.loops import is_in_loops

__all__ = ["compiled", "in_memory", "traced"]


def traced(run: Callable[..., Any], inputs: Sequence[Any], mode: Any) -> torch.fx.GraphModule:
    """Trace ``run`` to a graph of operators that Inductor has kernels for.

    For symbolic sizes, Python decompositions run in place of C++ code that would ask for numbers.
    """
    ready()
    from tj_inductor.adapter.names import make_fx, select_decomp_table

    with mode, python_dispatcher(mode.shape_env is not None), tracing_alone():
        known = select_decomp_table()
        table = {**known, **formulas(known, None if is_lost(FAST) else in_memory)}
        made: torch.fx.GraphModule = make_fx(run, decomposition_table=table, tracing_mode="real")(
            *inputs
        )
    round_constants(made.graph)  # outside of the mode: it computes elements
    if not is_lost(EQUAL):
        made.graph = _once(made.graph)
    with mode:
        by_twos(made.graph)
    made.recompile()
    return made


def in_memory(x: torch.Tensor) -> torch.Tensor:
    """``x``, which Inductor's kernels write to memory: a tensor with strides of its own."""
    from tj_inductor.adapter.names import force_stride_order

    made: torch.Tensor = force_stride_order(x, x.stride())
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
    call_as_it_is(graph)
    output.meta["user_visible_output_idxs"] = list(visible)
    same = in_one_place(output.args[0], written)
    write(graph, output, written)
    read_before(graph)
    copy_joined(graph)
    join_by_pixels(graph, visible)
    graph.recompile()  # Inductor's cache knows a graph by its code
    context = TracingContext(mode)
    context.output_strides = []
    forced = {"force_layout_optimization": True} if has_images(graph) else {}
    with (
        tracing(context),
        V.set_fake_mode(mode),
        _asked(visible, [_strides_of(output.args[0][i]) for i in visible]),
        settings(forced),
        _converting(),
        exact_propagation(),
        in_one_loop(),
        known_memory(),
        layouts_of_images(),
        lower_priority(),
        tracing_alone(),
        vectors_along_rows(),
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


LOOPS = (torch.ops.aten.copy.default, torch.ops.prims.convert_element_type.default)
"""Operators in loops of Inductor that regions do not have before they are traced."""


def _restride(
    graph: torch.fx.GraphModule, output: torch.fx.Node, visible: Mapping[int, Sequence[int] | None]
) -> list[Any]:
    """The outputs of ``graph``; what a user sees of convolutions is viewed with its strides.

    So is what kernels read for which Inductor lays out arguments. Other kernels of PyTorch get
    arguments with the strides of the graph, on which those of their results depend, as of a sort.
    """
    from tj_inductor.adapter.names import OpOverload

    found: Sequence[Any] = output.args[0]  # type: ignore[assignment]
    views: dict[Any, torch.fx.Node] = {}
    for i, strides in visible.items():
        node = found[i]
        made_by = node.args[0] if getattr(node, "target", None) is operator.getitem else node
        called = getattr(made_by, "target", None)
        if strides is not None and _may_have_others(node, strides):
            value = node.meta["val"]
            like = value.new_empty_strided(value.shape, strides)
            views[node] = _laid_out(graph, node, output, like)
        elif is_of_images(called):
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
    """``node``, or the same for ``reader`` with fixed strides if it has dimensions of size one.

    The stride of such a dimension is free for Inductor; others are asked for as they are.
    """
    value = node.meta["val"]
    shape, strides = tuple(value.shape), tuple(strides or value.stride())
    fixed = all(isinstance(n, int) for n in (*shape, *strides))
    if 1 not in shape or not fixed or is_lost(STRIDES):
        return node
    return _laid_out(graph, node, reader, value.as_strided(shape, strides))


def _laid_out(
    graph: torch.fx.GraphModule, node: torch.fx.Node, reader: torch.fx.Node, like: torch.Tensor
) -> torch.fx.Node:
    """``node`` with the strides of ``like``, for ``reader``."""
    with graph.graph.inserting_before(reader):
        found = graph.graph.call_function(laid_out_call(), (node, tuple(like.stride())))
    found.meta["val"] = like
    return found


LAID_OUT = (BACKWARD, CONVOLUTION, torch.ops.aten.mm.default, torch.ops.aten._int_mm.default)
"""Operators for whose arguments Inductor fixes a layout, also if the argument is an output."""


def _may_have_others(node: Any, strides: Sequence[int]) -> bool:
    """Test for an output with requested ``strides`` that Inductor lays out for a kernel.

    It does what the kernel needs last (``need_fixed_layout`` in ``graph.py``, 2.13 to 2.15), by the
    strides that follow from those of the inputs.
    """
    if is_lost(STRIDES) or not isinstance(node, torch.fx.Node):
        return False
    fixed = all(isinstance(n, int) for n in (*node.meta["val"].shape, *strides))
    return fixed and any(user.target in LAID_OUT for user in node.users)


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


@functools.cache
def _strides_pass() -> Any:
    """A class of passes that ask for strides of outputs.

    The passes run after Inductor has noted the strides of the graph.
    """
    from tj_inductor.adapter.names import CustomGraphPass

    class Strides(CustomGraphPass):  # type: ignore[misc]
        def __init__(self, strides: Mapping[int, Sequence[int] | None], known: Any) -> None:
            self.strides = dict(strides)
            self.known = known

        def __call__(self, graph: torch.fx.Graph) -> None:
            (output,) = graph.find_nodes(op="output")
            noted = list(output.meta["original_output_strides"])
            for i, strides in self.strides.items():
                noted[i] = noted[i] if strides is None else tuple(strides)
            output.meta["original_output_strides"] = noted

        def uuid(self) -> str:  # what Inductor keeps it would else find again for other strides
            return f"tj {_sources()} strides {sorted(self.strides.items())} {self.known}"

    return Strides


@functools.cache
def _sources() -> str:
    """A hash of this distribution's sources, on which the text of kernels depends, too."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _strides_of(node: Any) -> str:
    """The strides of an output of a graph, as text: the code of the graph does not tell them."""
    value = node.meta["val"] if isinstance(node, torch.fx.Node) else None
    return str(tuple(value.stride())) if isinstance(value, torch.Tensor) else ""


def _asked(
    strides: Mapping[int, Sequence[int] | None], known: Sequence[str]
) -> contextlib.AbstractContextManager[Any]:
    """Request ``strides`` for the outputs of a graph that is compiled inside of the block.

    ``known`` are the strides that they have in the graph.
    """
    if is_lost(STRIDES):
        need([STRIDES] if any(strides.values()) else [])
        return contextlib.nullcontext()
    from tj_inductor.adapter.names import config

    theirs = config.post_grad_custom_post_pass
    others = [*theirs] if isinstance(theirs, list | tuple) else [theirs]
    asked = _strides_pass()(strides, known)
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
