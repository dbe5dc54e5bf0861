"""Modules with equal siblings in a container, and a graph with regions for them taken apart."""

from __future__ import annotations

import builtins
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

__all__ = ["MARK", "Equals", "flatten", "is_region"]

FEWEST = 4
"""Siblings from which on regions save time: the first may be captured twice."""

MARK = "tj_equal_module"
"""Key, in the metadata of a region's call, of its module's number in `Equals.modules`."""

# Numbers of functions, whose code Dynamo keeps for the process.
_numbers = itertools.count()


@dataclass
class Equals:
    """The modules of one capture that are captured as regions, with their paths, by number.

    ``made`` and ``served`` count the records, and their uses, of each class.
    """

    seen: set[int] = field(default_factory=set)
    equal: set[int] = field(default_factory=set)
    modules: list[tuple[torch.nn.Module, str]] = field(default_factory=list)
    functions: dict[type, FunctionType] = field(default_factory=dict)
    made: Counter[type] = field(default_factory=Counter)
    served: Counter[type] = field(default_factory=Counter)

    def has(self, module: torch.nn.Module) -> bool:
        """Test for a module with equal siblings in what was called so far."""
        if id(module) not in self.seen:
            for part in module.modules():
                self.seen.add(id(part))
                self.equal.update(map(id, _equal_parts(part)))
        return id(module) in self.equal

    def function(self, kind: type) -> FunctionType:
        """A function that calls its argument: one for each class, as records are by function."""
        if kind not in self.functions:
            # Equal code is one key; and Dynamo would leave code of this file to Python.
            code = _call.__code__.replace(
                co_name=f"call_{next(_numbers)}", co_filename="<eval_with_key> of a module"
            )
            self.functions[kind] = FunctionType(code, {"__builtins__": builtins})
        return self.functions[kind]


def _equal_parts(container: torch.nn.Module) -> Iterator[torch.nn.Module]:
    kinds = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
    parts = [*container.children()] if isinstance(container, kinds) else []
    counts = Counter(map(type, parts))
    for part in parts:
        if counts[type(part)] >= FEWEST and next(part.children(), None) is not None:
            yield part


def _call(module: Any, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


# ------------------------------------------------------------------------------- taking apart


def flatten(graph: torch.fx.GraphModule, equals: Equals) -> None:
    """Replace calls of regions by what is in them, with the names of each call's own module."""
    first: dict[str, tuple[torch.nn.Module, str]] = {}
    for node in [n for n in graph.graph.nodes if is_region(n) and MARK in n.meta]:
        module = equals.modules[node.meta[MARK]]
        body, _, *inputs = node.args
        moved = _Moved(first.setdefault(body.target, module), module)
        outputs = _copied(graph, getattr(graph, body.target), inputs, node, moved)
        for part in [*node.users]:
            part.replace_all_uses_with(outputs[part.args[1]])
            graph.graph.erase_node(part)
        graph.graph.erase_node(node)
        if not body.users:
            graph.graph.erase_node(body)
    for name in first:
        delattr(graph, name)
    if first:
        graph.recompile()


def is_region(node: torch.fx.Node) -> bool:
    """Test for a call of a region."""
    return node.target is torch.ops.higher_order.invoke_subgraph


class _Moved:
    """The names of the parts of one module, for those of another one in its place."""

    def __init__(
        self, captured: tuple[torch.nn.Module, str], module: tuple[torch.nn.Module, str]
    ) -> None:
        (one, self.before), (other, self.after) = captured, module
        parts = dict(other.named_modules(remove_duplicate=False))
        named = one.named_modules(remove_duplicate=False)
        self.ids = {str(id(part)): str(id(parts[name])) for name, part in named if name in parts}

    def stack(self, stack: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """A stack of modules, as Dynamo keeps it for each node, with other names."""
        for key, (path, kind) in stack.items():
            number, at, count = key.partition("@")
            inside = path == self.before or path.startswith(f"{self.before}.")
            path = self.after + path[len(self.before) :] if inside else path
            yield f"{self.ids.get(number, number)}{at}{count}", (path, kind)


def _copied(
    graph: torch.fx.GraphModule,
    body: torch.fx.GraphModule,
    inputs: list[torch.fx.Node],
    before: torch.fx.Node,
    moved: _Moved,
) -> tuple[torch.fx.Node, ...]:
    """Copy the nodes of ``body`` to ``graph``; return those of its outputs."""
    given, known = iter(inputs), dict[torch.fx.Node, torch.fx.Node]()
    outputs: Any = ()
    with graph.graph.inserting_before(before):
        for node in body.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "output":
                outputs = torch.fx.node.map_arg(node.args[0], known.__getitem__)
            else:
                known[node] = copy = graph.graph.node_copy(node, known.__getitem__)
                if node.op == "get_attr" and not hasattr(graph, node.target):
                    setattr(graph, node.target, getattr(body, node.target))
                if stack := node.meta.get("nn_module_stack"):
                    copy.meta["nn_module_stack"] = dict(moved.stack(stack))
    return tuple(outputs)
