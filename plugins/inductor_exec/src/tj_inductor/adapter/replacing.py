"""Methods of Inductor's classes that are others while regions are compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tj_torch.internal import Shared, replace

from tj_inductor.adapter import names
from tj_inductor.adapter.features import is_lost

__all__ = ["Replacement"]


@dataclass
class Replacement:
    """The method ``name`` of the class that `names` calls ``owner``, replaced inside of blocks.

    It stays as it is where ``feature`` is lost. ``make`` is called with the method and returns the
    one in its place. The class is that of all threads: see `Shared`.
    """

    feature: str
    owner: str
    name: str
    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    shared: Shared = field(init=False)

    def __post_init__(self) -> None:
        self.shared = Shared(self._put)

    def _put(self, stack: contextlib.ExitStack) -> None:
        replace(stack, getattr(names, self.owner), self.name, self.make)

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Replace the method inside of the block."""
        with contextlib.nullcontext() if is_lost(self.feature) else self.shared.block():
            yield
