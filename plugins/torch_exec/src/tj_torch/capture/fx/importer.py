"""Import an FX graph, as a user wrote or traced it, as an acquired trace.

Unlike a graph from Dynamo, it has no metadata to rely on (it may have been traced with other
shapes), reads attributes of its module, and calls modules.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core import tag as tag_function
from tj_core.extend import BoundSymbol, CaptureError, Constant, Proxy, TensorProxy, leaves, map_tree

from tj_torch.capture.acquire import Importer
from tj_torch.capture.fakes import FakeRuns
from tj_torch.capture.fx.facts import FX, FxFacts
from tj_torch.capture.fx.leaves import LeafRecorder, is_transparent
from tj_torch.capture.higher_order.subprograms import is_graph
from tj_torch.capture.nodes import takes_values
from tj_torch.capture.sources import node_source
from tj_torch.guards.inputs import Inputs, OpenProgramError, Slot
from tj_torch.guards.modules import hooks_of
from tj_torch.ops.sizes.shape_env import is_symbolic
from tj_torch.ops.values import convert
from tj_torch.torch_private import ops as private
from tj_torch.torch_private.runtime import HigherOrderOperator, OpOverload, OpOverloadPacket, pytree

__all__ = ["GraphImporter", "is_recompiled"]

Target = Callable[..., Any]

_LIBRARIES = (OpOverload, OpOverloadPacket, HigherOrderOperator)


@dataclass
class GraphImporter(Importer):
    """Importer of a user's graph, which collects the inputs on the way.

    ``values`` are the Python values of nodes, with proxies for tensors; ``classes`` those of the
    leaf modules that were traced through; ``prefix`` the path of a nested graph that is inlined.
    """

    taken: Inputs = field(kw_only=True)
    prefix: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fakes = FakeRuns()
        self.examples: dict[torch.fx.Node, Any] = {}
        self.facts = FxFacts(self.dialects.tables[FX])
        self.values: dict[torch.fx.Node, Any] = {}
        self.inputs_by_slot: dict[int, Proxy] = {}
        self.classes: dict[type[torch.nn.Module], None] = {}

    # ------------------------------------------------------------------ inputs

    def placeholders(self, values: Mapping[torch.fx.Node, Any], names: Sequence[str]) -> None:
        """Define the graph's used placeholders by their values in this call."""
        self.given = values
        for (node, value), name in zip(values.items(), names, strict=True):
            if node.users:
                wish = str(node.target).lstrip("*")
                self.define(node, self.taken.argument(name, value, wish))

    def define(self, node: torch.fx.Node, tree: Any) -> None:
        """Give ``node`` a value: a tree of proxies, slots of inputs, and Python values."""
        value = map_tree(lambda slot: self.input(slot, node), tree, Slot)
        self.values[node] = value
        self.env[node] = convert.to_core(value)

    def input(self, slot: Slot, node: torch.fx.Node) -> Proxy:
        """Input of the trace for ``slot``, added at its first use."""
        if slot.index not in self.inputs_by_slot:
            name = self.namer(self.taken.names[slot.index])
            tensor = self.taken.tensors[slot.index]
            proxy = self.casts.input(self.proxy(name, tensor, node), tensor)
            self.inputs_by_slot[slot.index] = proxy
            self.proxies.append(proxy)
        return self.inputs_by_slot[slot.index]

    # ------------------------------------------------------------------ nodes

    def node(self, node: torch.fx.Node) -> None:
        """Import ``node``; a call of a module becomes the calls that it makes."""
        if node.op == "call_module":
            self.module(node)
        elif node.op == "output":
            pass
        elif node.op in ("call_function", "call_method") and not self.context.follows(node):
            if node.target is tag_function or not self.evaluated(node):
                self.refuse_unseen(node)
                super().node(node)
        else:
            super().node(node)

    def attribute(self, node: torch.fx.Node) -> None:
        """Import an attribute of the module; a tensor is an input, read at each call."""
        found = self.taken.state(self.prefix + str(node.target))
        if isinstance(found, torch.nn.Module):
            self.env[node] = self.constants.of(str(node.target), found)
        else:
            self.define(node, found)

    def value(self, node: torch.fx.Node) -> Any:
        """Python value of ``node`` in its own type, with proxies for tensors."""
        if node not in self.values:
            found = self.env[node]
            self.values[node] = found if isinstance(found, Proxy) else self.structured(node)
        return self.values[node]

    def structured(self, node: torch.fx.Node) -> Any:
        """Result of a call in its own type, such as ``torch.return_types.max``."""
        kept = self.env[node]
        if not isinstance(kept, tuple | list | dict):
            return map_tree(lambda c: c.value, kept, Constant)
        flat, spec = pytree.tree_flatten(self.example(node))
        found = [leaf for leaf in leaves(kept)]
        values = [p if isinstance(p, Proxy) else v for p, v in zip(found, flat, strict=True)]
        return pytree.tree_unflatten(values, spec)

    def evaluated(self, node: torch.fx.Node) -> bool:
        """Evaluate ``node`` if it computes with Python values alone; False if it does not."""
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.value)
        if node.target is getattr:
            return self.attribute_of(node, *args)  # type: ignore[arg-type]
        flat = list(leaves((args, kwargs)))
        direct = [a for a in (*args, *kwargs.values()) if isinstance(a, Proxy)]
        inside = any(isinstance(a, Proxy) for a in flat)
        function = self.python_function(node, args)
        if function is None or direct or (inside and function not in _STRUCTURAL):
            return False
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            raise CaptureError(
                f"{type(error).__name__}: {error}", source=node_source(node)
            ) from error
        self.define(node, result)
        return True

    def attribute_of(self, node: torch.fx.Node, value: Any, name: str, *default: Any) -> bool:
        """Evaluate ``getattr``; False for an attribute that is an operation on a tensor.

        :raises OpenProgramError: for an attribute of a tensor that no guard covers.
        """
        if not isinstance(value, TensorProxy):
            self.define(node, getattr(value, name, *default))
            return True
        said = self.facts.attribute(name)
        if said == "constant":
            self.define(node, getattr(self.fakes.fake(value), name))
            return True
        if said != "operation":
            raise OpenProgramError(f"attribute {name!r} of a tensor is not guarded")
        return False

    def refuse_unseen(self, node: torch.fx.Node) -> None:
        """Refuse calls whose effects or inputs the graph does not show.

        :raises OpenProgramError: for these; a frontend that sees Python takes the program.
        """
        if node.op == "call_method":
            if self.facts.attribute(str(node.target)) == "refused":
                raise OpenProgramError(f"Tensor.{node.target} looks at what guards do not see")
        elif not self.is_torchs(node.target):
            raise OpenProgramError(f"{node.target} is Python code")
        values = [self.env[n] for n in node.all_input_nodes]
        used = node.users and not any(isinstance(v, Proxy) for v in leaves(values))
        if used and not _makes_tensors(node.target):
            raise OpenProgramError(f"{node.target} reads the state of the process")

    def rebind(self, after: Proxy, call: BoundSymbol) -> None:
        """Map all names of an object whose metadata a call has changed to ``after``."""
        names = self.other_names.of(after.name)

        def renewed(value: Any) -> Any:
            return after if isinstance(value, Proxy) and value.name in names else value

        self.env = {n: map_tree(renewed, v, Proxy) for n, v in self.env.items()}
        self.values = {n: pytree.tree_map(renewed, v) for n, v in self.values.items()}

    # ------------------------------------------------------------------ metadata

    def example(self, node: torch.fx.Node) -> Any:
        """Result of ``node`` on fake tensors; computed once."""
        if node not in self.examples:
            args, kwargs = self.arguments(node.args), self.arguments(node.kwargs)
            named = self.dialects.names.symbol(node.target, tuple(args), kwargs)
            self.examples[node] = self.fakes.run(
                named.function, named.args, named.kwargs, self.context.current
            )
        return self.examples[node]

    def says(self, node: torch.fx.Node) -> bool:
        """True: `example` can run any node."""
        return True

    def changes_state(self, call: BoundSymbol, node: torch.fx.Node) -> bool:
        """Test for a call made for its side effects: it takes no values and is no factory."""
        return not takes_values(call) and not _makes_tensors(node.target)

    def bound(self, call: BoundSymbol, function: Target, node: torch.fx.Node) -> BoundSymbol:
        """``call`` with its outputs; operand graphs, which have no metadata, stay constants."""

        def opaque(c: Constant) -> Constant:
            return self.constants.of(c.text, c.value) if is_graph(c) else c

        call = call.replace(
            args=map_tree(opaque, call.args, Constant),
            kwargs=map_tree(opaque, call.kwargs, Constant),
        )
        return self.expanded(call, function, node) or self.unexpanded(call, node)

    def expanded(
        self, call: BoundSymbol, function: Target, node: torch.fx.Node
    ) -> BoundSymbol | None:
        """``call`` with the facts of its expansion; None, with metadata kept, if it has none."""
        found = super().expanded(call, function, node)
        if found is None:
            self.examples[node] = self.metadata(call, function, node)
        return found

    def metadata(self, call: BoundSymbol, function: Target, node: torch.fx.Node) -> Any:
        """Result on fake tensors of a call that does not expand.

        :raises CaptureError: if it cannot run on fake tensors.
        """
        if self.changes_state(call, node):
            return None
        if reason := self.dialects.memo.expander.denied.reason(function):
            raise CaptureError(reason, source=call.source)
        try:
            return self.fakes.run(function, call.args, call.kwargs, call.context)
        except Exception as error:
            reason = f"{call.symbol}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise CaptureError(reason, source=call.source) from error

    def unexpanded(self, call: BoundSymbol, node: torch.fx.Node) -> BoundSymbol:
        """``call`` with its metadata alone; later calls on fake tensors take the same fakes."""
        bound = super().unexpanded(call, node)
        values = [v for v in pytree.tree_leaves(self.example(node)) if _is_value(v)]
        self.fakes.record(bound.flat_outs, values)
        return bound

    def python_function(self, node: torch.fx.Node, args: tuple[Any, ...]) -> Target | None:
        """Function that ``node`` calls, if it is a pure one of Python's; else None."""
        if node.op == "call_method":
            kind = type(args[0])
            plain = kind in (tuple, list, dict, str, torch.Size, torch.dtype, int, float, slice)
            return getattr(kind, str(node.target), None) if plain else None
        target: Any = node.target
        of_python = getattr(target, "__module__", None) in ("_operator", "math")
        pure = of_python or self.facts.is_pure(target)
        return target if pure and callable(target) else None

    def is_torchs(self, target: Any) -> bool:
        """Test for a function of PyTorch or of Python's standard operators."""
        if isinstance(target, _LIBRARIES) or self.facts.is_pure(target) or target is tag_function:
            return True
        if not isinstance(target, types.FunctionType | types.BuiltinFunctionType | type):
            return type(target).__module__.partition(".")[0] in ("torch", "builtins")
        module = getattr(target, "__module__", None) or ""
        return module.partition(".")[0] in ("torch", "_operator", "math", "")

    # ------------------------------------------------------------------ modules

    def module(self, node: torch.fx.Node) -> None:
        """Import a call of a submodule: the nodes of a graph, or the calls of a leaf module.

        :raises OpenProgramError: for any other module.
        """
        path = self.prefix + str(node.target)
        module = self.taken.submodule(path)
        if private.is_input_check(module):
            module(*(self.given[n] for n in node.all_input_nodes))  # raises on wrong inputs
            self.values[node] = self.env[node] = None
        elif _is_plain_graph(module):
            self.inline(node, module, path)
        elif isinstance(module, torch.nn.Module) and is_transparent(module, self.facts):
            self.leaf_module(node, module, path)
        else:
            raise OpenProgramError(f"{path} is a {type(module).__qualname__}")

    def inline(self, node: torch.fx.Node, module: torch.fx.GraphModule, path: str) -> None:
        """Import the nodes of a nested graph in place of its call."""
        self.taken.plain_attributes(path)
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(module.graph, {}))
        inputs = [n for n in graph.nodes if n.op == "placeholder"]
        for inner, value in zip(inputs, _bind(inputs, node, path), strict=True):
            self.define(inner, torch.fx.map_arg(value, self.value))
        before, self.prefix = self.prefix, f"{path}."
        result = self.run(graph)
        self.prefix = before
        self.define(node, result)

    def run(self, graph: torch.fx.Graph) -> Any:
        """Import a nested graph; return its result, with proxies for tensors."""
        result: Any = None
        for node in graph.nodes:
            if node.op == "output":
                result = torch.fx.map_arg(node.args[0], self.value)
            elif node.op != "placeholder":
                self.node(node)
        return result

    def leaf_module(self, node: torch.fx.Node, module: torch.nn.Module, path: str) -> None:
        """Import the calls that a ``torch.nn`` module makes for these arguments."""
        for name, child in module.named_modules():
            self.taken.plain_attributes(".".join(filter(None, (path, name))))
            self.classes[type(child)] = None
        recorder = LeafRecorder()
        with self.fakes.entered(self.context.current):
            arguments, state = self.leaf_arguments(node, module, path, recorder)
            recorder.record(module, arguments, state)
        self.trace_leaf(node, recorder.graph, path, module)

    def leaf_arguments(
        self, node: torch.fx.Node, module: torch.nn.Module, path: str, recorder: LeafRecorder
    ) -> tuple[Any, dict[str, torch.Tensor]]:
        """Fake arguments of a module's call, and fakes of its parameters and buffers by name."""
        fakes: dict[str, Any] = {}

        def fake(proxy: Proxy) -> Any:
            if proxy.name not in fakes:
                fakes[proxy.name] = self.fakes.fake(proxy)
                inner = recorder.given(fakes[proxy.name], proxy.name)
                self.values[inner] = self.env[inner] = proxy
            return fakes[proxy.name]

        given = torch.fx.map_arg((node.args, node.kwargs), self.value)
        arguments = map_tree(fake, given, Proxy)
        state = {}
        for name in _state_names(module):
            slot = self.taken.state(f"{path}.{name}")
            state[name] = fake(self.input(slot, node))
            recorder.known_as(self.taken.tensors[slot.index], state[name])
        return arguments, state

    def trace_leaf(
        self, node: torch.fx.Node, graph: torch.fx.Graph, path: str, module: torch.nn.Module
    ) -> None:
        """Import a recorded graph under the source line of the module's call."""
        stack = {**(node.meta.get("nn_module_stack") or {}), path: (path, type(module))}
        for inner in graph.nodes:
            inner.meta["nn_module_stack"] = stack
            inner.stack_trace = node.stack_trace
        self.define(node, self.run(graph))


_STRUCTURAL = frozenset(
    {operator.getitem, len, tuple, list, dict, operator.add, reversed, zip, isinstance}
)
"""Functions that pass on elements of a container without reading their values."""


def _makes_tensors(target: Any) -> bool:
    """Test for a factory: it returns tensors, takes none, and has no side effects."""
    if isinstance(target, OpOverload):
        return bool(target._schema.returns) and not target._schema.is_mutable
    return isinstance(target, types.BuiltinFunctionType | types.FunctionType) and (
        target in private.factories()
    )


def _is_value(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_symbolic(value)


def _is_plain_graph(module: Any) -> bool:
    """Test for a GraphModule that runs just its graph, with one argument per placeholder."""
    return (
        isinstance(module, torch.fx.GraphModule)
        and is_recompiled(module)
        and type(module.graph._codegen) is torch.fx.graph.CodeGen
        and "forward" not in vars(module)
        and not any(hooks_of(module))
    )


def is_recompiled(module: torch.fx.GraphModule) -> bool:
    """Test if ``module`` runs the code of its graph: `recompile` was called after edits."""
    return bool(module.graph.python_code(root_module="self").src == module.code)


def _bind(inputs: list[torch.fx.Node], node: torch.fx.Node, path: str) -> list[Any]:
    """Argument of a call for each placeholder of the called graph.

    :raises OpenProgramError: for variadic or missing arguments.
    """
    kwargs = dict(node.kwargs)
    values = list(node.args)
    for inner in inputs[len(values) :]:
        name = str(inner.target)
        if name.startswith("*") or (name not in kwargs and not inner.args):
            raise OpenProgramError(f"{path} is called in an unusual way")
        values.append(kwargs.pop(name) if name in kwargs else inner.args[0])
    if kwargs or len(values) != len(inputs):
        raise OpenProgramError(f"{path} is called in an unusual way")
    return values


def _state_names(module: torch.nn.Module) -> list[str]:
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    return [name for name, _ in (*parameters, *buffers)]
