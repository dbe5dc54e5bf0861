"""``tj.jit(f, on_miss="eager")``: calls without a program run in eager; a thread compiles for them.

The process has one such thread, and each program has at most one call that is compiled for. Other
calls that miss meanwhile run in eager and are forgotten. So a program holds the arguments of one
call at most, however many shapes it is called with, and frequent shapes get a program sooner.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from tj_core.extend import TjError
from tj_core.internal import worker

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.dynamo.read_values import facts_of
from tj_torch.dispatch.error_notes import with_notes
from tj_torch.runtime.beside import beside
from tj_torch.runtime.giving_way import answering
from tj_torch.runtime.subclasses import is_wrapper
from tj_torch.runtime.thread_state import own_facts
from tj_torch.torch_private.runtime import pytree

if TYPE_CHECKING:
    from collections.abc import Callable

    from tj_core.extend import Jitted

__all__ = ["Background"]

_MOST_CHANGES = 8
"""Compilations in a row that are given up since the program changes what is captured."""


@dataclass(slots=True)
class _State:
    """State of the thread of a call: of PyTorch, and its context variables.

    Dynamo's settings are context variables.
    """

    facts: tuple[Any, ...]
    inference: bool
    context: contextvars.Context

    @staticmethod
    def now() -> _State:
        found = tuple(fact.read() for fact in own_facts())
        return _State(found, torch.is_inference_mode_enabled(), contextvars.copy_context())

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Give this thread the state of the other."""
        before = _State.now()
        with torch.inference_mode(self.inference):
            self._set()
            try:
                yield
            finally:
                before._set()

    def _set(self) -> None:
        for fact, value in zip(own_facts(), self.facts, strict=True):
            if not fact.is_as(value):
                fact.restore(value)


class _Call(Protocol):
    """A call without a program; see the dispatcher's own `Call`."""

    @property
    def values(self) -> Any: ...

    def copied(self) -> Any: ...

    def instead(self, function: Callable[..., Any]) -> Any: ...


class _Dispatcher(Protocol):
    """The dispatcher of a program, whose `Background` this is."""

    jitted: Jitted
    programs: Any
    entries: Any
    background: Background | None

    def uncompiled(self, call: Any) -> Callable[..., Any] | None: ...

    def without(self, failure: Exception) -> Callable[..., Any]: ...

    def compile(self, call: Any) -> Any: ...


@dataclass(slots=True)
class _Request:
    """A call that a program is wanted for, with the metadata of its tensors when it was made."""

    call: _Call
    state: _State
    tensors: list[tuple[torch.Tensor, Any]]

    @staticmethod
    def of(call: _Call) -> _Request:
        tensors = [v for v in pytree.tree_leaves(call.values) if isinstance(v, torch.Tensor)]
        return _Request(call.copied(), _State.now(), [(t, facts_of(t)) for t in tensors])

    @property
    def is_current(self) -> bool:
        """True if the tensors have the metadata that they had in the call."""
        return all(facts_of(tensor) == facts for tensor, facts in self.tensors)


class Background:
    """Compilation of one program behind its calls.

    ``request`` is the call that is compiled for, or will be. ``failure`` is the error of the last
    compilation, which the next miss reports.
    """

    def __init__(self) -> None:
        self.request: _Request | None = None
        self.failure: Exception | None = None
        self.changes = 0
        self._lock = threading.Lock()

    def answer(self, dispatcher: _Dispatcher, call: _Call) -> Any:
        """Result of ``call`` in eager; then compile for it, if nothing else is being compiled.

        The program runs first, so that tj does not compile for a call that raises.
        """
        stats = dispatcher.jitted.stats
        failure, self.failure = self.failure, None
        function = None if failure is None else dispatcher.without(failure)
        if function is None:
            function = dispatcher.uncompiled(call)
        stats.misses += 1
        stats.eager += 1
        if function is not None:
            return call.instead(function)
        if self.request is not None:
            with answering():
                return call.instead(dispatcher.programs.original)
        refused = _refused(dispatcher.programs.given(call))
        if refused is not None:
            dispatcher.entries.stand_aside(refused)
            return call.instead(with_notes(dispatcher.jitted, dispatcher.programs.original))
        request = _Request.of(call)
        with answering():  # another program may be being compiled
            result = call.instead(dispatcher.programs.original)
        with self._lock:
            if self.request is None:
                self.request = request
                worker().put(dispatcher, _compile)
        return result

    def compile(self, dispatcher: _Dispatcher) -> None:
        """Compile for the waiting call; in the thread behind."""
        request = self.request
        try:
            if request is not None and request.is_current:
                request.state.context.run(self._compile, dispatcher, request)
                self.changes = 0
            else:
                self._changed("the metadata of an argument")
        except dynamo.ChangedError as error:
            self._changed(str(error))
        except Exception as error:
            # The traceback holds the frames, and these the arguments.
            self.failure = error.with_traceback(None)
        finally:
            self.request = None

    def _compile(self, dispatcher: _Dispatcher, request: _Request) -> None:
        answered = dispatcher.entries.around(dispatcher.programs.answering)
        with answered, dynamo.compile_lock(), request.state.entered(), beside():
            dispatcher.compile(request.call)

    def _changed(self, what: str) -> None:
        self.changes += 1
        if self.changes >= _MOST_CHANGES:
            self.failure = TjError(
                f"{what} has changed each time while the program was compiled behind",
                hint='without on_miss="eager" the call waits for its program',
            )


def _refused(given: Any) -> str | None:
    """Reason why a call with the values ``given`` cannot be compiled for behind."""
    if any(isinstance(value, torch.Tensor) and is_wrapper(value) for value in given):
        # Captures run their handlers, and undo what these write, which the program may have.
        return "a tensor subclass cannot be compiled for behind the program; it runs in eager"
    return None


def _compile(dispatcher: _Dispatcher) -> None:
    assert dispatcher.background is not None
    dispatcher.background.compile(dispatcher)
