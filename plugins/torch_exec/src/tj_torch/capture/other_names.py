"""Other names of tensors: outputs of calls that are an argument itself, as of ``x.to(x.dtype)``."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tj_core.extend import BoundSymbol, CaptureError, Proxy

from tj_torch.capture.nodes import is_variable

if TYPE_CHECKING:
    import torch

__all__ = ["OtherNames"]


@dataclass(frozen=True, slots=True)
class OtherNames:
    """Names of one object in a program so far.

    ``first`` has the argument's own name by the names of such outputs; ``nodes`` the nodes of these
    outputs by the own name.
    """

    first: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, list[torch.fx.Node]] = field(default_factory=dict)

    def note(self, call: BoundSymbol, node: torch.fx.Node) -> None:
        """Note the outputs of ``call``, which ``node`` makes, that are an argument."""
        for alias in call.effects.aliases:
            if alias.identical and alias.kind == "arg":
                own = call.flat_args[alias.index].name
                out = call.flat_outs[alias.output].name
                self.first[out] = own = self.first.get(own, own)
                self.nodes.setdefault(own, []).append(node)

    def of(self, name: str) -> set[str]:
        """All names of the object that is called ``name``, itself among them."""
        own = self.first.get(name, name)
        return {own, *(n for n, f in self.first.items() if f == own)}

    def check_rebound(
        self, after: Proxy, call: BoundSymbol, done: Container[torch.fx.Node]
    ) -> None:
        """Check that an object whose metadata ``call`` changes to ``after`` has one name.

        ``done`` are the nodes imported so far.

        :raises CaptureError: if the program has other names for the object: Dynamo keeps the old
            metadata under these, and may have computed with it.
        """
        others = self.nodes.get(after.name, ())
        if after.name in self.first or any(_is_kept(node, done) for node in others):
            raise CaptureError(
                f"{call.symbol} changes the metadata of a tensor that has two names, "
                "of which capture keeps one as it was",
                source=call.source,
            )


def _is_kept(node: torch.fx.Node, done: Container[torch.fx.Node]) -> bool:
    """Test for a node whose value is in a variable of the program or used by later nodes."""
    return is_variable(node) or any(user not in done for user in node.users)
