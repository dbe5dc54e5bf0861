"""Places that handlers of tensor subclasses may write to: what is there, if changed, and back."""

from __future__ import annotations

import functools
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import logging
    import types

__all__ = ["Contents", "Names", "Place", "Printed", "Records", "Value", "is_users"]

_PLAIN = (int, float, complex, bool, str, bytes)
_HANDLERS = ("__torch_dispatch__", "__torch_function__")


class Place(Protocol):
    """State of Python as it was when this was made."""

    def changed(self) -> str | None:
        """Name of what has changed since, or None."""

    def restore(self) -> None:
        """Undo the changes, as far as that is possible."""


@dataclass(frozen=True, slots=True)
class Names:
    """Variables with their values, of a module, a class, an object or a closure."""

    label: str
    values: dict[str, Any]
    read: Callable[[], dict[str, Any]]
    write: Callable[[str, Any], None]
    remove: Callable[[str], None]

    def changed(self) -> str | None:
        """First variable with another value, None if there is none."""
        now = self.read()
        names = (n for n in {**self.values, **now} if not _same(self.values, now, n))
        found = next(names, None)
        return None if found is None else f"{self.label}.{found}"

    def restore(self) -> None:
        """Set the variables back to their values."""
        now = self.read()
        for name in {**self.values, **now}:
            if name not in self.values:
                self.remove(name)
            elif name not in now or now[name] is not self.values[name]:
                self.write(name, self.values[name])


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a container."""

    label: str
    container: Any
    copy: Any

    def changed(self) -> str | None:
        """Name of the container if its contents have changed, else None."""
        now = self.container
        if len(now) != len(self.copy):
            return self.label
        if isinstance(now, set):
            return self.label if now != self.copy else None
        if isinstance(now, dict):
            same = all(_same(self.copy, now, key) for key in now)
        else:
            # `is` and not `==`, which may be the user's, or a tensor's.
            same = all(map(_equal, self.copy, now))
        return None if same else self.label

    def restore(self) -> None:
        """Set the container back to its contents."""
        if self.changed():
            self.container.clear()
            fill = "extend" if isinstance(self.container, list | deque) else "update"
            getattr(self.container, fill)(self.copy)


class Value:
    """State that an object of Python or of a library keeps for itself, as ``read`` returns it.

    Without ``write``, changes cannot be undone: an iterator does not go back.
    """

    def __init__(
        self, label: str, read: Callable[[], Any], write: Callable[[Any], Any] | None = None
    ) -> None:
        self.label, self.read, self.write = label, read, write
        self.before = read()

    def changed(self) -> str | None:
        """Name of the object if its state is another one, else None."""
        return None if self.read() == self.before else self.label

    def restore(self) -> None:
        """Set the state back."""
        if self.write is not None and self.changed():
            self.write(self.before)


class Printed:
    """Text that a handler prints to a stream of ``sys``, which goes nowhere during a capture."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stream = getattr(sys, name)
        self.heard = _Hearing(self.stream)
        setattr(sys, name, self.heard)

    def changed(self) -> str | None:
        """Name of the stream if something was printed, else None."""
        return f"sys.{self.name}" if self.heard.said else None

    def restore(self) -> None:
        """Set the stream back, unless somebody has set another one meanwhile."""
        if getattr(sys, self.name) is self.heard:
            setattr(sys, self.name, self.stream)


@dataclass(slots=True)
class _Hearing:
    """A stream in place of another one, without what handlers write in this thread."""

    stream: Any
    said: bool = False
    thread: int = field(default_factory=threading.get_ident)

    def write(self, text: str) -> Any:
        if threading.get_ident() == self.thread and _in_handler():
            self.said = True
            return len(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Records:
    """Records that a handler gives to a logger, which drops them during a capture."""

    def __init__(self, label: str, logger: logging.Logger) -> None:
        self.label, self.logger = label, logger
        self.said = False
        self.thread = threading.get_ident()
        logger.addFilter(self.passes)

    def passes(self, record: logging.LogRecord) -> bool:
        """Let ``record`` pass unless it is a handler's, in this thread."""
        said = threading.get_ident() == self.thread and _in_handler()
        self.said = self.said or said
        return not said

    def changed(self) -> str | None:
        """Name of the logger if it got a record, else None."""
        return self.label if self.said else None

    def restore(self) -> None:
        """Let all records pass."""
        self.logger.removeFilter(self.passes)


def _in_handler() -> bool:
    """Test if a handler of a user's tensor subclass is running in this thread."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in _HANDLERS and is_users(frame.f_globals.get("__name__")):
            return True
        frame = frame.f_back
    return False


def is_users(module: Any) -> bool:
    """Test for a module of the user's, not of Python, PyTorch or tj."""
    return _is_users_name(str(module))


@functools.cache
def _is_users_name(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in ("torch", "tj_core", "tj_torch")


def _same(before: dict[Any, Any], now: dict[Any, Any], name: Any) -> bool:
    return name in before and name in now and _equal(before[name], now[name])


def _equal(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and a == b)
