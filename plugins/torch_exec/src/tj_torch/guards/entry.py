"""All guards of an entry that Dynamo captured: checked, printed and explained in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.extend import Guard

if TYPE_CHECKING:
    from tj_torch.guards.dynamo import DynamoGuards
    from tj_torch.guards.guard import Guards

__all__ = ["EntryGuards"]


@dataclass(frozen=True, slots=True)
class EntryGuards:
    """Guards of an entry: Dynamo's, ``dynamo``, and tj's ``own``."""

    dynamo: DynamoGuards
    own: Guards

    def check(self) -> Callable[[dict[str, Any]], bool]:
        """Function that checks all guards on a frame's locals: first tj's own, then Dynamo's."""
        check = self.own.check(self.dynamo.check)
        assert check is not None
        return check

    def printed(self) -> tuple[Guard, ...]:
        """All guards for `tj.guards`."""
        return tuple(map(Guard, (*self.dynamo.texts(), *self.own.texts())))

    def failed(self, frame: dict[str, Any]) -> str | None:
        """Text of the first guard that does not hold for ``frame``; None if all hold.

        Dynamo's guards come first, since they tell which value of the program has changed.
        """
        found = self.dynamo.failed(frame)
        return self.own.failed(frame) if found is None else found
