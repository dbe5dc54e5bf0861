"""Methods of Inductor's classes that are others while regions are compiled."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tj_inductor.adapter import names
from tj_inductor.adapter.features import is_lost

__all__ = ["Replacement"]


@dataclass
class Replacement:
    """The method ``name`` of the class that `names` calls ``owner``, replaced inside of blocks.

    It stays as it is where ``feature`` is lost. ``make`` is called with the method and returns the
    one in its place. The class is that of all threads: the method is set back where the last of
    their blocks ends.
    """

    feature: str
    owner: str
    name: str
    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    lock: Any = field(default_factory=threading.Lock)
    blocks: int = 0
    own: Any = None

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Replace the method inside of the block."""
        if is_lost(self.feature):
            yield
            return
        owner = getattr(names, self.owner)
        with self.lock:
            if not self.blocks:
                self.own = vars(owner).get(self.name)
                setattr(owner, self.name, self.make(getattr(owner, self.name)))
            self.blocks += 1
        try:
            yield
        finally:
            with self.lock:
                self.blocks -= 1
                if not self.blocks and self.own is None:  # the base class has it
                    delattr(owner, self.name)
                elif not self.blocks:
                    setattr(owner, self.name, self.own)
