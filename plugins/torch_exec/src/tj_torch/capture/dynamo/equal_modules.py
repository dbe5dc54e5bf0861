"""Equal modules of a container, such as the layers of a transformer, of which one is captured.

A module with parts that has several siblings of its class is captured as a region: see
`tj_torch.capture.dynamo.reused_regions` for when its record serves for a sibling. Afterwards the
regions are taken apart again (`flatten`): the graph is the same as without them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from tj_torch.torch_private.eager import level_depth
from tj_torch.torch_private.lookup import MissingNameError
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack
    from types import FunctionType

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["Equals", "correct", "flatten"]

FEWEST = 4
"""Siblings from which on regions save time: the first may be captured twice."""

TRIALS = 3
"""Records of a class of which none has served again, after which no more are made."""

MARK = "tj_equal_module"
"""Key, in the metadata of a region's call, of its module's number in `Equals.modules`."""

# Classes whose modules cannot be captured once, in this process: found in a capture.
_REFUSED: WeakSet[type] = WeakSet()
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
        return id(module) in self.equal and type(module) not in _REFUSED

    def function(self, kind: type) -> FunctionType:
        """A function that calls its argument: one for each class, as records are by function."""
        if kind not in self.functions:
            name = f"call_{next(_numbers)}"
            scope: dict[str, Any] = {}
            text = f"def {name}(module, *args, **kwargs):\n    return module(*args, **kwargs)\n"
            exec(compile(text, "<eval_with_key> of a module", "exec"), scope)
            self.functions[kind] = scope[name]
        return self.functions[kind]


def _equal_parts(container: torch.nn.Module) -> Iterator[torch.nn.Module]:
    kinds = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
    parts = [*container.children()] if isinstance(container, kinds) else []
    counts = Counter(map(type, parts))
    for part in parts:
        if counts[type(part)] >= FEWEST and next(part.children(), None) is not None:
            yield part


def correct(stack: ExitStack, noticed: Observations) -> None:
    """Capture equal modules as regions, in captures of whole programs."""
    from tj_torch.torch_private.dynamo import nn_module

    try:
        from tj_torch.torch_private.dynamo import invoke_subgraph as regions
    except MissingNameError:
        return
    if not has(regions, "is_reusable"):  # before 2.12 each call is captured
        return

    def calling(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            if noticed.equals is None or not _is_taken(self, tx, noticed.equals):
                return original(self, tx, args, kwargs)
            if not all(_is_known(value) for value in (*args, *kwargs.values())):
                return original(self, tx, args, kwargs)
            return _called(self, tx, args, kwargs, noticed)

        return call_function

    replace(stack, nn_module.UnspecializedNNModuleVariable, "call_function", calling)


def _is_taken(variable: Any, tx: Any, equals: Equals) -> bool:
    from tj_torch.torch_private.dynamo import nn_module

    kinds = (
        nn_module.UnspecializedNNModuleVariable,
        nn_module.UnspecializedBuiltinNNModuleVariable,
    )
    inside = tx.output.current_tracer.parent is not None or level_depth() > 0
    if type(variable) not in kinds or variable.source is None or inside:
        return False
    return equals.has(variable.value)


def _is_known(value: Any) -> bool:
    """Test for an argument of which Dynamo can tell that it equals another call's."""
    from tj_torch.torch_private.dynamo import ListVariable, TupleVariable
    from tj_torch.torch_private.dynamo import invoke_subgraph as regions

    value = value.realize()
    if isinstance(value, ListVariable | TupleVariable):
        return all(map(_is_known, value.items))
    return regions.classify_vt(value) is not None


def _called(variable: Any, tx: Any, args: Any, kwargs: Any, noticed: Observations) -> Any:
    """The result of a call of a module, as a region.

    :raises RestartAnalysis: if it cannot be one; no module of its class is, from then on.
    """
    from tj_torch.torch_private.dynamo import (
        TorchHigherOrderOperatorVariable,
        UserFunctionVariable,
        exc,
    )

    equals = noticed.equals
    regions = noticed.regions
    assert equals is not None and regions is not None  # noqa: PT018
    kind = type(variable.value)
    before, outside = (regions.made, regions.served), _outside(tx)
    try:
        region = TorchHigherOrderOperatorVariable.make(torch.ops.higher_order.invoke_subgraph)
        function = UserFunctionVariable(equals.function(kind))
        result = region.call_function(tx, [function, variable, *args], kwargs)
    except (exc.RestartAnalysis, exc.SkipFrame):
        raise
    except Exception as error:
        _refuse(kind, str(error))
    made, served = regions.made - before[0], regions.served - before[1]
    if not (made or served) or outside != _outside(tx):
        _refuse(kind, "it depends on more than its arguments and attributes")
    equals.made[kind] += made
    equals.served[kind] += served
    if equals.made[kind] >= TRIALS and not equals.served[kind]:
        _REFUSED.add(kind)
    node = next(n for n in reversed(tx.output.graph.nodes) if _is_region(n))
    node.meta[MARK] = len(equals.modules)
    path = _PART.sub(r".\2", variable.get_nn_module_stack_source().name)
    equals.modules.append((variable.value, path))
    return result


_PART = re.compile(r"\._(?:modules|parameters|buffers)\[(['\"])([^'\"\]]+)\1\]")
"""A part of a module in the expression of a source, which Dynamo shortens in the same way."""


def _outside(tx: Any) -> tuple[int, int]:
    """Random numbers and sizes of data so far: a region must not make any."""
    return len(tx.output.random_calls), tx.output.shape_env.unbacked_symint_counter


def _refuse(kind: type, reason: str) -> None:
    from tj_torch.torch_private.dynamo import exc

    _REFUSED.add(kind)
    raise exc.UnspecializeRestartAnalysis(restart_reason=f"{kind.__name__}: {reason}") from None


# ------------------------------------------------------------------------------- taking apart


def flatten(graph: torch.fx.GraphModule, equals: Equals) -> None:
    """Replace calls of regions by what is in them, with the names of each call's own module."""
    first: dict[str, tuple[torch.nn.Module, str]] = {}
    for node in [n for n in graph.graph.nodes if _is_region(n) and MARK in n.meta]:
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


def _is_region(node: torch.fx.Node) -> bool:
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
