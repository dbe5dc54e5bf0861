"""Threads that compile beside the program: what the whole process shares is left alone there.

A capture sets back what it has changed: random numbers, filters of warnings, the default data type.
In the thread of a call nothing else changes these meanwhile. In another thread the program runs on,
and to set them back would take back what the program has done: numbers would be drawn twice.
Likewise FX marks the process as tracing and replaces methods of modules, and the program would find
them so; threads of a compilation in a call leave these alone, too.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from tj_torch.runtime.giving_way import giving_way
from tj_torch.torch_private.replacement import Shared, replace

__all__ = ["beside", "is_beside", "tracing_alone"]


@dataclass(slots=True)
class _Silence:
    """Filter of one thread's warnings, and their record for blocks with ``record=True``.

    It stands where a filter has the pattern of the text.
    """

    thread: int
    records: list[list[Any]] = field(default_factory=list)

    def match(self, text: str) -> bool:
        """Test if the warning ``text`` is to be ignored; tj's own are for the user."""
        if threading.get_ident() != self.thread or text.startswith("tj:"):
            return False
        if self.records:
            self.records[-1].append(SimpleNamespace(message=text))
        return True


@dataclass(slots=True)
class _Generator:
    """PyTorch's default generator, whose state the thread ``thread`` cannot set."""

    generator: Any
    thread: int

    def set_state(self, state: torch.Tensor) -> Any:
        """Set the state, unless ``thread`` asks: it would set it back."""
        mine = threading.get_ident() == self.thread
        return self.generator if mine else self.generator.set_state(state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)


@dataclass(slots=True)
class _Front:
    """A filter of warnings that is asked first, and the lists that it was put into."""

    rule: Any
    lists: list[list[Any]] = field(default_factory=list)
    removed: bool = False

    def put(self) -> None:
        """Put the filter first in the list that is in force, until it is removed."""
        # A block that has begun before that ends later, by the method that it has found then.
        if self.removed:
            return
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        if not filters or filters[0] is not self.rule:
            self._remove_from(filters)
            filters.insert(0, self.rule)
        if not any(known is filters for known in self.lists):
            self.lists.append(filters)

    def remove(self) -> None:
        """Remove the filter from all lists: a block may set one back that it has found."""
        self.removed = True
        for filters in self.lists:
            self._remove_from(filters)

    def enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Replacement of ``catch_warnings.__enter__``: this thread records, and changes nothing.

        Blocks in two threads may end in another order than they began, which would leave the
        filters of one of them in force for good.
        """

        def __enter__(block: Any) -> Any:
            silence = _here.silence
            if silence is None:
                result = original(block)
                self.put()  # the block has a list of its own now
                return result
            said: list[Any] = []
            silence.records.append(said)
            return said

        return __enter__

    def leave(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Replacement of ``catch_warnings.__exit__``."""

        def __exit__(block: Any, *error: Any) -> Any:
            silence = _here.silence
            if silence is not None:
                silence.records.pop()
                return None
            result = original(block, *error)
            self.put()
            return result

        return __exit__

    def change(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Replacement of a function that changes the filters."""

        def call(*args: Any, **kwargs: Any) -> None:
            if not is_beside():
                original(*args, **kwargs)
                self.put()

        return call

    def _remove_from(self, filters: list[Any]) -> None:
        filters[:] = [other for other in filters if other is not self.rule]


_SETTERS: tuple[tuple[Any, str], ...] = (
    (torch, "set_default_dtype"),
    (torch, "use_deterministic_algorithms"),
    (torch.cuda, "set_rng_state"),
    (torch.xpu, "set_rng_state"),
)
"""Functions by which Dynamo sets back settings of the process after a capture."""


class _Here(threading.local):
    silence: _Silence | None = None


# Of the one thread that compiles, for all sessions.
_here = _Here()


def is_beside() -> bool:
    """Test if this thread compiles beside the program."""
    return _here.silence is not None


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """Leave alone what the process shares, in this thread, and give way to calls.

    One thread at a time may be inside.
    """
    thread = threading.get_ident()
    silence = _here.silence = _Silence(thread)
    try:
        with contextlib.ExitStack() as stack:
            replace(stack, torch.random, "default_generator", lambda g: _Generator(g, thread))
            for owner, name in _SETTERS:
                replace(stack, owner, name, _left_alone)
            # A filter for one thread is nothing that `simplefilter` could make.
            front = _Front(("ignore", silence, Warning, None, 0))
            stack.callback(front.remove)
            front.put()
            replace(stack, warnings.catch_warnings, "__enter__", front.enter)
            replace(stack, warnings.catch_warnings, "__exit__", front.leave)
            for name in ("simplefilter", "filterwarnings", "resetwarnings"):
                replace(stack, warnings, name, front.change)
            stack.enter_context(tracing_alone())
            stack.enter_context(giving_way())
            yield
    finally:
        _here.silence = None


def _left_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return None if is_beside() else function(*args, **kwargs)

    return call


class _Tracing(threading.local):
    depth = 0


# Of each thread, since all threads share FX's class and its replacement.
_tracing = _Tracing()


def _traced_alone(original: Callable[..., Any]) -> Callable[..., Any]:
    def trace(tracer: Any, root: Any, concrete_args: Any = None) -> Any:
        if not _tracing.depth or isinstance(root, torch.nn.Module):
            return original(tracer, root, concrete_args)
        tracer.root, tracer.submodule_paths = torch.nn.Module(), None
        tracer.tensor_attrs = {}
        tracer.graph = torch.fx.Graph(tracer_cls=type(tracer))
        function, args = tracer.create_args_for_root(root, False, concrete_args)
        tracer.create_node("output", "output", (tracer.create_arg(function(*args)),), {})
        return tracer.graph

    return trace


_TRACER = Shared(lambda stack: replace(stack, torch.fx.Tracer, "trace", _traced_alone))


@contextlib.contextmanager
def tracing_alone() -> Iterator[None]:
    """Let FX trace functions without changes to the process, in this thread.

    FX marks the process as tracing, in which functions of ``torch.compile`` refuse to be called,
    and replaces ``nn.Module.__call__``: calls of modules in other threads would be recorded, or
    raise. The tracer of ``make_fx`` needs neither, and other functions that PyTorch's compiler
    traces call no modules.
    """
    with _TRACER.block():
        _tracing.depth += 1
        try:
            yield
        finally:
            _tracing.depth -= 1
