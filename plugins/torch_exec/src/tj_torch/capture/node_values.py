"""Make proxies in a trace for the values of captured nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import NO_TAGS, BoundSymbol, CaptureError, Namer, OpaqueProxy, TagSet

from tj_torch.capture.dynamo.trace_limits import UnheldError
from tj_torch.capture.nodes import takers, takes_values
from tj_torch.capture.sources import node_source
from tj_torch.ops.expansion.kinds import NoTensorKind
from tj_torch.ops.sizes.shape_env import plain
from tj_torch.ops.values import convert
from tj_torch.torch_private.runtime import pytree

if TYPE_CHECKING:
    from tj_core.extend import Context, Proxy, Trace

    from tj_torch.ops.context.tracker import ContextTracker
    from tj_torch.ops.service import TorchDialects
    from tj_torch.ops.settings.modes import Modes

__all__ = ["NodeValues"]


class NodeValues(ABC):
    """Maker of proxies for nodes of ``graph``, and the ``calls`` of its trace so far.

    Names come from ``namer``, or are those in ``renamed``; ``tags`` are the user's, by node.
    ``env`` has the value of each node. ``proxies`` and ``result`` are the trace's inputs and
    outputs; ``inside`` is true for a subprogram, ``opaque_state`` once a call may have changed
    state that later calls read.
    """

    graph: torch.fx.GraphModule
    dialects: TorchDialects
    namer: Namer
    calls: list[BoundSymbol]
    env: dict[torch.fx.Node, Any]
    context: ContextTracker
    modes: Modes
    tags: dict[torch.fx.Node, TagSet]
    renamed: dict[torch.fx.Node, str]
    proxies: list[Proxy]
    result: Any
    inside: bool
    opaque_state: bool

    @abstractmethod
    def node(self, node: torch.fx.Node) -> None:
        """Import ``node``, whose arguments are imported already."""

    @abstractmethod
    def inner(self, graph: torch.fx.GraphModule, context: Context) -> NodeValues:
        """Importer for a subprogram of this program."""

    @abstractmethod
    def traced(self, name: str) -> Trace:
        """Trace of the imported nodes as the program of a subprogram."""

    def proxy(self, name: str, value: Any, node: torch.fx.Node | None = None) -> Any:
        """Proxy for ``value``: a tensor, a symbolic number or an opaque object.

        :raises UnheldError: for a tensor of a subclass that no plugin handles.
        """
        tags = self.tags.get(node, NO_TAGS) if node is not None else NO_TAGS
        sizes = self.dialects.sizes
        if isinstance(value, torch.Tensor):
            made = convert.tensor_proxy(name, value, sizes.dim)
            if made.subclass is not None:
                self.handled(made.subclass.type, node)
            return made.replace(tags=tags)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return sizes.number(convert.number_proxy(name, value)).replace(tags=tags)
        return OpaqueProxy(name, f"{type(value).__module__}.{type(value).__qualname__}", tags=tags)

    def handled(self, name: str, node: torch.fx.Node | None) -> None:
        """Check that a plugin handles the tensor subclass called ``name``, a value of ``node``.

        :raises UnheldError: if none does.
        """
        try:
            self.dialects.memo.expander.kinds.named(name)
        except NoTensorKind as error:
            source = None if node is None else node_source(node)
            raise UnheldError(error.message, source=source) from error

    def example(self, node: torch.fx.Node) -> Any:
        """Result of ``node`` at capture: a fake tensor, a number, a tree of these, or None."""
        return node.meta.get("example_value")

    def says(self, node: torch.fx.Node) -> bool:
        """Test if the result of ``node`` at capture is known, which may be None."""
        return "example_value" in node.meta

    def changes_state(self, call: BoundSymbol, node: torch.fx.Node) -> bool:
        """Test for a call made for its side effects: it neither takes nor returns values.

        Expanding such a call would have these effects at compile time.
        """
        made = pytree.tree_leaves(self.example(node))
        values = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
        return not any(isinstance(v, values) for v in made) and not takes_values(call)

    def output_names(self, node: torch.fx.Node, single: bool) -> Callable[[int], str]:
        """Names of a node's outputs by index: the node's own for a ``single`` one.

        Several have the names of the nodes that select them.
        """
        if single:
            return lambda _: self.namer(self.renamed.get(node, node.name))
        taken_by = takers(node)
        return lambda i: self.namer(taken_by[i].name if i in taken_by else f"{node.name}_{i}")

    def captured(self, call: BoundSymbol, node: torch.fx.Node) -> Any:
        """Outputs of ``call``, with their metadata from the capture.

        :raises CaptureError: if the capture has none.
        """
        value = self.example(node)
        if value is None and node.users and not self.says(node):
            if isinstance(node.target, type):  # an object that only goes into other calls
                made = node.target
                path = f"{made.__module__}.{made.__qualname__}"
                return OpaqueProxy(self.output_names(node, single=True)(0), path)
            raise CaptureError(
                f"capture does not say what {call.symbol} returns", source=call.source
            )
        count = iter(range(1 << 30))
        name = self.output_names(node, isinstance(value, torch.Tensor))

        def output(leaf: Any) -> Any:
            if isinstance(known := plain(leaf), bool | int | float | str | None):
                return known
            return self.proxy(name(next(count)), leaf)

        return convert.to_core_tree(value, output)
