"""Functions of PyTorch and of Python replaced for a while, and a list of the replaced ones."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from tj_torch.torch_private.lookup import MissingNameError

__all__ = ["Shared", "has", "noting", "path_of", "replace"]

_METHODS = "tp_methods"
"""Attribute of Dynamo's classes, from 2.14 on: entries with the functions of methods, by name."""

# Set in a block of one thread alone (`noting`).
_SEEN: ContextVar[list[tuple[Any, str]] | None] = ContextVar("seen", default=None)


def replace(
    stack: ExitStack,
    owner: Any,
    name: str,
    make: Callable[[Callable[..., Any]], Any],
    *,
    inherited: bool = False,
) -> None:
    """Replace ``owner.name`` by ``make(owner.name)``, until ``stack`` is left.

    So it is where a table of the class has the function, too.

    :param inherited: allow that only a base has it; ``owner`` then gets an attribute of its own.
    :raises MissingNameError: if this PyTorch has no such name.
    """
    if (seen := _SEEN.get()) is not None:
        seen.append((owner, name))
    if not has(owner, name) and not (inherited and hasattr(owner, name)):
        raise MissingNameError(f"{path_of(owner)}.{name}")
    if has(owner, name):
        # `getattr` would bind a class method, and take a static one out of its descriptor.
        original = vars(owner)[name]
        stack.callback(setattr, owner, name, original)
    else:
        original = getattr(owner, name)
        # The base has it: set back, it would hide later changes of that.
        stack.callback(delattr, owner, name)
    made = make(original)
    setattr(owner, name, made)
    table = vars(owner).get(_METHODS, {})
    for key in [key for key, entry in table.items() if entry.handler is original]:
        stack.callback(table.__setitem__, key, table[key])
        table[key] = dataclasses.replace(table[key], handler=made)


class Shared:
    """Replacements for all threads while at least one of them is in a block.

    ``put`` makes them, by `replace`, where the first block begins; they are undone where the last
    one ends.
    """

    def __init__(self, put: Callable[[ExitStack], None]) -> None:
        self.put = put
        self.lock, self.stack = threading.Lock(), ExitStack()
        self.blocks = 0

    @contextmanager
    def block(self) -> Iterator[None]:
        """Have the replacements inside of the block."""
        with self.lock:
            if not self.blocks:
                self.put(self.stack)
            self.blocks += 1
        try:
            yield
        finally:
            with self.lock:
                self.blocks -= 1
                if not self.blocks:
                    self.stack.close()


@contextmanager
def noting() -> Iterator[list[tuple[Any, str]]]:
    """A list of what `replace` is asked to replace, owners and names, until this is left."""
    seen: list[tuple[Any, str]] = []
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


def path_of(owner: Any) -> str:
    """Dotted path of a class or module, as ``torch._dynamo.exc.Unsupported``."""
    return f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__


def has(owner: Any, name: str) -> bool:
    """Test if this PyTorch has ``owner.name``, in ``owner`` itself and not in a base."""
    return name in vars(owner)
