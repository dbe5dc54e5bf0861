"""Constants of a captured program that have no literal form: one name per object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import Constant, Namer, map_tree

from tj_torch.capture.higher_order.subprograms import is_graph

__all__ = ["Constants"]


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants kept beside a program; ``namer`` gives them free names."""

    namer: Namer
    _found: dict[int, Constant] = field(default_factory=dict)

    def of(self, wish: str, value: Any) -> Constant:
        """Constant for ``value``, one per object, with a name like ``wish``."""
        # By identity: objects may have no hash, or an `==` of the user's.
        if id(value) not in self._found:
            name = self.namer.constant(wish)
            self._found[id(value)] = Constant(name, value, named=False)
        return self._found[id(value)]

    def distinct(self, tree: Any) -> Any:
        """``tree`` with one constant per object; operand graphs stay as they are."""

        def own(c: Constant) -> Constant:
            return c if c.named or is_graph(c) else self.of(c.text, c.value)

        return map_tree(own, tree, Constant)
