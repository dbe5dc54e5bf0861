"""Import an FX graph of torch-level calls from Dynamo as an acquired trace.

Each node becomes one call: its canonical symbol, its arguments, and metadata, effects and body from
its expansion. A call that cannot be expanded (it may raise at run time, or depends on data)
takes its outputs' metadata from the capture and counts as having side effects, so nothing moves
across it or removes it. Operand graphs of a higher-order operation become subprograms of its call.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tj_core import tag as tag_function
from tj_core.extend import (
    NO_TAGS,
    BoundSymbol,
    CannotExpandError,
    CaptureError,
    Constant,
    Context,
    Effects,
    Language,
    Namer,
    OpaqueProxy,
    PassRecord,
    Proxy,
    Symbol,
    TagRegistry,
    Trace,
    bind_outputs,
    leaves,
    map_tree,
)
from tj_core.internal import NO_EFFECTS

from tj_torch.capture import inner_gradients
from tj_torch.capture.autocast_notes import Casts
from tj_torch.capture.comparison import Comparison, check_assumed
from tj_torch.capture.constants import Constants
from tj_torch.capture.dynamo.kernel_trials import lacks_kernel, unread
from tj_torch.capture.dynamo.trace_limits import UNHELD, UnheldError, check_held
from tj_torch.capture.handled_calls import tagged_handled
from tj_torch.capture.higher_order.checkpoint import check_repeated
from tj_torch.capture.higher_order.subprograms import (
    bind_subprograms,
    is_graph,
    known_value,
    operation,
    sizes_of_data,
    with_sizes,
)
from tj_torch.capture.inputs import STATIC, input_names, static_inputs, unsavable
from tj_torch.capture.node_groups import import_group
from tj_torch.capture.node_values import NodeValues
from tj_torch.capture.nodes import (
    as_given,
    input_value,
    is_record,
    made_subclass,
    makes_jagged,
    outdated,
    tagged,
    tagged_names,
    takes_subclass,
    takes_values,
    user_tags,
)
from tj_torch.capture.other_names import OtherNames
from tj_torch.capture.raising_calls import (
    MAY_RAISE,
    cannot_fail,
    may_raise_at_run_time,
    pinned,
)
from tj_torch.capture.sources import node_source
from tj_torch.capture.streams import refuse_streams
from tj_torch.capture.tensor_places import Held, held_at
from tj_torch.ops.context.ambient import ambient_context
from tj_torch.ops.context.tracker import ContextTracker
from tj_torch.ops.errors import ExpansionError
from tj_torch.ops.expansion.kinds import NoTensorKind
from tj_torch.ops.facts.metadata_mutation import is_autograd_change
from tj_torch.ops.facts.stateless import STATELESS
from tj_torch.ops.facts.wiring import UNKNOWN, WIRING
from tj_torch.ops.values import convert
from tj_torch.torch_private import ops as private
from tj_torch.torch_private.runtime import set_gradients

if TYPE_CHECKING:
    from tj_torch.ops.service import TorchDialects

__all__ = ["Acquired", "Importer", "acquire"]

SIDE_EFFECT = Effects(ordered=("side_effect",))


@dataclass(frozen=True, slots=True)
class Acquired:
    """Trace of a graph, with the seconds of ``acquire`` and of ``expand``.

    ``held`` are tensors that the graph holds as attributes: the last inputs of the trace.
    """

    trace: Trace
    seconds: dict[str, float]
    held: tuple[Held, ...] = ()


def acquire(
    graph: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    dialects: TorchDialects,
    language: Language,
    tags: TagRegistry,
    sources: Mapping[int, str],
    parameters: Sequence[str] = (),
    static: bool = False,
) -> Acquired:
    """Import ``graph`` as a trace at stage ACQUIRED.

    :raises CaptureError: if the graph does not show all that the program does.
    :raises TagError: for a wrong use of a tag in the user's program.

    ``examples`` are the graph's inputs in this call; ``sources`` their expressions over the
    frame; ``parameters`` the names of the wrapped function's parameters. With ``static``, inputs
    that a module owns and tensors that the graph holds get the tag `STATIC`.
    """
    names = input_names(graph, sources, parameters)
    while True:
        importer = Importer(graph, dialects, tags, Namer(language.names()), language)
        importer.static = static_inputs(examples, sources) if static else None
        importer.inputs(examples, names)
        importer.nodes(graph.graph.nodes)
        importer.leave()
        # An expansion may have specialized a size to a number: import again, so that earlier
        # calls have the number, too.
        if not outdated(importer.proxies, graph, examples):
            return importer.acquired()


@dataclass
class Importer(NodeValues):
    """Importer of one graph: the inputs, calls and values of its trace so far.

    ``env`` has the value of each node; ``static`` the indices of inputs to tag, None for no tags;
    ``expanding`` the seconds spent on expansions.
    """

    graph: torch.fx.GraphModule
    dialects: TorchDialects
    registry: TagRegistry
    namer: Namer
    language: Language
    proxies: list[Proxy] = field(default_factory=list)
    calls: list[BoundSymbol] = field(default_factory=list)
    env: dict[torch.fx.Node, Any] = field(default_factory=dict)
    result: Any = ()
    expanding: float = 0.0
    static: frozenset[int] | None = None

    def __post_init__(self) -> None:
        check_assumed(self.dialects.sizes, self.graph.graph)
        self.context = ContextTracker(ambient_context())
        self.modes = self.dialects.modes()
        self.tags = user_tags(self.graph, self.registry)
        self.renamed = tagged_names(self.graph)
        self.opaque_state = self.inside = False
        self.held: dict[int, tuple[Proxy, Held]] = {}
        self.compared = Comparison()
        self.casts = Casts.of(self.graph, self.context, self.dialects.tables)
        self.constants = Constants(self.namer)
        self.programs: dict[tuple[Any, ...], Trace] = {}
        self.other_names = OtherNames()
        self.unread = unread(self.graph.graph)
        self.start = time.perf_counter()

    def acquired(self) -> Acquired:
        """Trace of the imported nodes.

        :raises CaptureError: if the expansion of a call returns other metadata than capture saw.
        """
        self.compared.check(self.dialects.sizes.dim)
        trace = Trace(
            tuple(self.proxies),
            tuple(self.calls),
            self.result,
            context=self.context.ambient,
            history=(PassRecord("acquire", "torch"),),
            language=self.language,
        )
        spent = time.perf_counter() - self.start
        seconds = {"acquire": spent - self.expanding, "expand": self.expanding}
        return Acquired(trace, seconds, tuple(held for _, held in self.held.values()))

    # ------------------------------------------------------------------ inputs

    def inputs(self, examples: Sequence[Any], names: Sequence[str]) -> None:
        """Add the graph's inputs, under ``names``."""
        nodes = [n for n in self.graph.graph.nodes if n.op == "placeholder"]
        for i, (node, example, name) in enumerate(zip(nodes, examples, names, strict=True)):
            try:
                proxy = self.proxy(self.namer(name), input_value(node, example), node)
            except CannotExpandError as error:
                raise CaptureError(f"the input {name}: {error}") from error
            proxy = unsavable(self.casts.input(as_given(proxy, example), example), example)
            if self.static is not None and i in self.static:
                proxy = proxy.replace(tags=proxy.tags.add(STATIC))
            guarded = private.guarded_object(example) if isinstance(proxy, OpaqueProxy) else None
            self.env[node] = proxy if guarded is None else self.constants.of(name, guarded)
            self.proxies.append(proxy)

    # ------------------------------------------------------------------ nodes

    def nodes(self, nodes: Iterable[torch.fx.Node]) -> None:
        """Import all of ``nodes``; the nodes of a level of `torch.func` become one call."""
        nodes = list(nodes)
        for node in nodes:
            refuse_streams(node)
        for group in inner_gradients.groups(nodes):
            import_group(self, group)

    def inner(self, graph: torch.fx.GraphModule, context: Context) -> Importer:
        """Importer for a subprogram of this program."""
        inner = Importer(graph, self.dialects, self.registry, self.namer, self.language)
        inner.context, inner.inside = ContextTracker(context, self.context.cache), True
        inner.opaque_state, inner.modes = self.opaque_state, self.modes
        inner.constants, inner.programs = self.constants, self.programs
        inner.compared, inner.casts = self.compared, self.casts
        return inner

    def node(self, node: torch.fx.Node) -> None:
        """Import ``node``, whose arguments are imported already."""
        if node.op == "placeholder":
            return
        if node.op == "output":
            self.result = self.arguments(node.args[0])
        elif node.op == "get_attr":
            self.attribute(node)
        elif node.target is tag_function:
            # `tj.tag` returns its argument; `user_tags` has read the tags.
            self.env[node] = self.arguments(node.args[0])
        elif not (self.context.handles(node) or self.item(node) or self.record(node)):
            self.call(node)

    def record(self, node: torch.fx.Node) -> bool:
        """Import a record of constants, such as a configuration, as a constant; else False."""
        if not is_record(node.target):
            return False
        given = self.arguments(node.args), self.arguments(node.kwargs)
        # A record of values that differ between calls is no constant.
        if any(isinstance(leaf, Proxy) for leaf in leaves(given)):
            return False
        args, kwargs = map_tree(lambda c: c.value, given, Constant)
        made = node.target(*args, **kwargs)  # type: ignore[operator]
        self.env[node] = self.constants.of(node.name, made)
        return True

    def leave(self) -> None:
        """Add a last call that sets the grad mode, if the program leaves another one behind.

        :raises CaptureError: if it leaves another part of the context changed.
        """
        ambient, grad = self.context.ambient, self.context.current.get("grad")
        if self.context.current != ambient.with_("grad", grad):
            # Later calls of the user's would run under it; only the grad mode can be set by a call.
            raise CaptureError("the program changes a global mode and leaves it so")
        if grad != ambient.get("grad"):
            named = self.dialects.names.symbol(set_gradients, (grad,), {})
            call = BoundSymbol(named.symbol, named.args, effects=SIDE_EFFECT, context=ambient)
            self.calls.append(call)

    def arguments(self, tree: Any) -> Any:
        """FX arguments as core arguments."""
        return convert.to_core_tree(tree, self.leaf)

    def leaf(self, value: Any) -> Any:
        """Leaf of an FX argument as a core argument."""
        return self.env[value] if isinstance(value, torch.fx.Node) else convert.to_core(value)

    def attribute(self, node: torch.fx.Node) -> None:
        """Import an attribute of the graph: a submodule is a constant, a tensor an input."""
        value: Any = self.graph
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, torch.fx.GraphModule):
            self.env[node] = Constant(str(node.target), value, named=False)
            return
        constant = self.constants.of(str(node.target), value)
        if not isinstance(value, torch.Tensor):
            self.env[node] = constant
            return
        if self.inside:
            self.env[node] = self.fixed(constant, value, node)
            return
        if id(value) not in self.held:  # it may be written to: an input, not a constant
            proxy = self.casts.input(self.proxy(self.namer(node.name), value, node), value)
            if self.static is not None:
                proxy = proxy.replace(tags=proxy.tags.add(STATIC))
            self.held[id(value)] = proxy, held_at(self.graph, str(node.target))
            self.proxies.append(proxy)
        self.env[node] = self.held[id(value)][0]

    def fixed(self, constant: Constant, value: torch.Tensor, node: torch.fx.Node) -> Proxy:
        """Value of a tensor that a subprogram holds, through a call of ``tj.constant``."""
        out: Proxy = self.proxy(self.namer(node.name), value, node)
        call = BoundSymbol(Symbol("tj", "constant"), (constant,), outputs=out)
        self.calls.append(call.replace(context=self.context.current, source=node_source(node)))
        return out

    def item(self, node: torch.fx.Node) -> bool:
        """Import ``node`` if it selects one of a call's outputs; False for other nodes."""
        if node.target is not operator.getitem:
            return False
        source, index = node.args
        value = self.env.get(source) if isinstance(source, torch.fx.Node) else None
        # A tensor is indexed by a call, as `x[0]`; this is an item of what a call returned.
        if not isinstance(value, tuple | list) or not isinstance(index, int):
            return False
        self.env[node] = value[index]
        return True

    def call(self, node: torch.fx.Node) -> None:
        """Import ``node`` as a call."""
        args, kwargs = self.arguments(node.args), self.arguments(node.kwargs)
        named = self.dialects.names.symbol(node.target, tuple(args), kwargs)
        call = BoundSymbol(
            named.symbol,
            self.constants.distinct(named.args),
            self.constants.distinct(tuple(named.kwargs.items())),
            context=self.context.current,
            source=node_source(node),
        )
        check_held(call, self.dialects.tables[UNHELD])
        if cannot_fail(call, self.dialects.sizes):
            return
        bound = tagged_handled(self.bound(call, named.function, node), node)
        self.env[node] = self.place(bound, node)
        for index, after in bound.effects.rebinds:
            if after != bound.flat_args[index]:
                self.rebind(after, bound)
        self.other_names.note(bound, node)

    def bound(
        self, call: BoundSymbol, function: Callable[..., Any], node: torch.fx.Node
    ) -> BoundSymbol:
        """``call`` with outputs, effects and body, or subprograms."""
        if any(map(is_graph, leaves((call.args, call.kwargs)))):
            call = operation(call, node)
            rule = self.dialects.tables[WIRING].get(call.symbol)
            call = call.replace(kwargs=self.constants.distinct(call.kwargs))
            bound = bind_subprograms(call, node, UNKNOWN if rule is None else rule.value, self)
            check_repeated(bound)
            return bound
        expanded = self.expanded(call, function, node)
        if expanded is None:
            self.compared.resizes(node)  # its effects are unknown
            return self.unexpanded(call, node)
        self.compared.note(expanded, node)
        return expanded

    def subprogram(
        self, graph: torch.fx.GraphModule, name: str, operands: Sequence[Any], context: Context
    ) -> Trace:
        """Program of an operand graph; one for all calls that share the graph and the context."""
        sizes = tuple(map(sizes_of_data, operands))
        key = id(graph), context, self.context.cache.key, sizes, *map(known_value, operands)
        if key not in self.programs:
            inner = self.inner(graph, context)
            self.programs[key] = inner.program(self.namer(name), operands)
            self.opaque_state |= inner.opaque_state
            self.expanding += inner.expanding
        return self.programs[key]

    def program(self, name: str, operands: Sequence[Any]) -> Trace:
        """Trace of this graph as a subprogram, with its inputs named after ``operands``."""
        nodes = [n for n in self.graph.graph.nodes if n.op == "placeholder"]
        for node, operand in zip(nodes, (*operands, *[None] * len(nodes)), strict=False):
            self.operand(node, operand if isinstance(operand, Proxy) else None)
            if known := known_value(operand):
                self.env[node] = known[-1]
        self.nodes(self.graph.graph.nodes)
        return self.traced(name)

    def traced(self, name: str) -> Trace:
        """Trace of the imported nodes as the program of a subprogram."""
        return Trace(
            tuple(self.proxies),
            tuple(self.calls),
            self.result,
            name,
            context=self.context.ambient,
            language=self.language,
        )

    def operand(self, node: torch.fx.Node, operand: Proxy | None) -> None:
        """Add an input of an operand graph, under the name of its operand if that is free."""
        free = operand is not None and all(p.name != operand.name for p in self.proxies)
        name = operand.name if operand is not None and free else self.namer(node.name)
        value = node.meta.get("example_value")
        if value is None and operand is not None:
            proxy = operand.replace(name=name, tags=NO_TAGS)
        else:
            proxy = with_sizes(self.proxy(name, value, node), operand)
        self.env[node] = proxy
        self.proxies.append(proxy)

    def expanded(
        self, call: BoundSymbol, function: Callable[..., Any], node: torch.fx.Node
    ) -> BoundSymbol | None:
        """``call`` with the facts of its expansion, or None if it has none.

        :raises UnheldError: if it computes with tensors of a subclass that no plugin handles.
        """
        change = is_autograd_change(call)
        unknown = self.opaque_state or self.changes_state(call, node)
        unknown = unknown or may_raise_at_run_time(call, self.dialects.tables[MAY_RAISE])
        # What nothing reads is left out, and would raise nothing.
        name = call.symbol.qualname
        unknown = unknown or (node in self.unread and lacks_kernel(function, name, node))
        if (unknown and not change) or makes_jagged(node):
            return None
        made = made_subclass(node)
        if made is not None and not takes_subclass(call):
            # PyTorch's functionalization ends the process at a call that makes a subclass; the
            # expander runs such makers in another way.
            self.dialects.memo.expander.makers[function] = made
        start = time.perf_counter()
        try:
            value = node.meta.get("example_value")
            facts = self.dialects.expand(call, function, self.modes, value)
        except NoTensorKind as error:
            raise UnheldError(error.message, source=call.source) from error
        except (CannotExpandError, ExpansionError):
            return None
        finally:
            self.expanding += time.perf_counter() - start
        facts = pinned(facts) if change else facts
        return bind_outputs(call, facts, self.output_names(node, isinstance(facts.outputs, Proxy)))

    def unexpanded(self, call: BoundSymbol, node: torch.fx.Node) -> BoundSymbol:
        """``call`` with its metadata from the capture, and unknown effects."""
        outputs = self.captured(call, node)
        pure = call.symbol.namespace == "operator" and not call.on_subclass
        if not takes_values(call) and not pure and not self.is_stateless(call):
            self.opaque_state = True  # it may have changed global state that later calls read
        return call.replace(outputs=outputs, effects=NO_EFFECTS if pure else SIDE_EFFECT)

    def is_stateless(self, call: BoundSymbol) -> bool:
        """Test for a call, in table ``stateless``, that leaves the meaning of later calls as is."""
        rule = self.dialects.tables[STATELESS].get(call.symbol)
        return rule is not None and rule.value

    def place(self, call: BoundSymbol, node: torch.fx.Node) -> Any:
        """Add ``call`` to the program, with its outputs tagged; return the outputs."""
        call = self.casts.call(tagged(call, node, self.tags, self.registry), self.context.cache)
        self.calls.append(call)
        return call.outputs

    def rebind(self, after: Proxy, call: BoundSymbol) -> None:
        """Let later uses of a value whose metadata a call has changed see ``after``.

        :raises CaptureError: if the program has other names for the object.
        """
        self.other_names.check_rebound(after, call, self.env)
        for node, value in self.env.items():
            self.env[node] = map_tree(lambda p: after if p.name == after.name else p, value, Proxy)
