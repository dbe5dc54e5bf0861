"""Calls of a jitted function: check the entries' guards, run the first that holds, else compile.

The callable made here does as little as can be per call: one dict of locals, one C++ guard check
per entry, one call of the entry's function. Everything else happens on a miss.
"""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from tj_core.errors import CaptureError, TjWarning, add_note
from tj_core.jitted import Entry, Fallback, Guard, Jitted
from tj_core.source import Source

from tj_torch.frontend import dynamo
from tj_torch.frontend.ambient import ambient_mode
from tj_torch.frontend.compile import GraphCompiler
from tj_torch.frontend.guards import extra_guards, module_types
from tj_torch.frontend.sources import stack_source, users_stacklevel
from tj_torch.frontend.templates import Row, make_frame

__all__ = ["Dispatcher", "HookDispatcher", "wrap_function"]


class Dispatcher:
    """Owns the rows of one jitted callable: guard checks and compiled functions."""

    def __init__(self, target: Any, jitted: Jitted, compiler: GraphCompiler) -> None:
        self.target = target
        self.jitted = jitted
        self.compiler = compiler
        self.frame = make_frame(target, self.miss)
        self.call = dynamo.inlined_as(self.frame.call, self.frame.root)
        self.parameters = _parameters(target)
        self.rows: tuple[Row, ...] = ()
        self.by_entry: dict[Entry, Row] = {}
        self.elsewhere: Callable[..., Any] | None = None
        self.elsewhere_calls = 0
        jitted.refresh = self._count

    @cached_property
    def hooked(self) -> Callable[..., Any]:
        """The program under PyTorch's own hook, made when it is first needed."""
        return self.compiler.hooked(self.frame.root)

    def _count(self) -> None:
        compiled_there = self.jitted.stats.misses - len(self.by_entry)
        elsewhere = max(0, self.elsewhere_calls - compiled_there)
        self.jitted.stats.hits = self.frame.hits() + elsewhere

    # ------------------------------------------------------------------ misses

    def miss(self, frame: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compile for these arguments and run; or run without tj, saying why."""
        mode = ambient_mode()
        if mode is not None:
            self._fall_back(f"called under {mode}; the original function runs", None)
            return self.target(*args, **kwargs)
        if self.elsewhere is not None:
            self.elsewhere_calls += 1
            return self.elsewhere(*args, **kwargs)
        if dynamo.function_modes():  # such as `with torch.device(...)`: only the hook knows them
            self.elsewhere_calls += 1
            return self.hooked(*args, **kwargs)
        try:
            # One program at a time, of all: sessions share expansions, Dynamo its state. Dynamo's
            # lock comes first, as it does where Dynamo calls us.
            with dynamo.compile_lock(), self.jitted.lock:
                row = self._compile(frame, args, kwargs)
        except dynamo.CaptureFailure as error:
            failure = error
        except CaptureError as error:
            self._fall_back(f"not captured: {error.message}", error.source)
            self.elsewhere = self.target
            return self.target(*args, **kwargs)
        else:
            return row[1](*args, **kwargs)
        # Outside of the handler, so that what the program raises is not chained to Dynamo's error.
        return self._without_capture(failure, args, kwargs)

    def _compile(self, frame: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Row:
        for row in self.rows:  # another thread may have compiled it meanwhile
            if row[0](frame):
                return row
        options = self.jitted.options
        with self.jitted.stats.timing("capture"):
            captured = dynamo.capture(
                self.frame.root, args, kwargs, dynamic=options.dynamic, opaque=self.compiler.opaque
            )
        self.jitted.stats.misses += 1
        entry, row = self._build(captured)
        self.by_entry[entry] = row
        self._keep(entry)
        if not row[0](frame):
            self._fall_back("the guards of a new entry do not hold for its own arguments", None)
        return row

    def _build(self, captured: dynamo.Capture) -> tuple[Entry, Row]:
        compilation = None
        if captured.graph is not None:
            compilation = self.compiler.compile(
                captured.graph, captured.examples, captured.sources, self.parameters
            )
        entry = Entry(compilation)
        function = None if compilation is None else compilation.function
        with self.jitted.stats.timing("guards"):
            built = captured.build(function, _weakly(self._dead, entry))
        operations = () if compilation is None else _operations(compilation.traces[0])
        check, texts = extra_guards(
            module_types(self.target, captured.graph, built.traced_codes), operations
        )
        # Not `built` itself: it holds the traced code, whose death must end the entry.
        captured_guards = built.guards
        entry.guards = lambda: _guards(captured_guards(), texts)
        return entry, (_both(built.check, check), built.run)

    def _keep(self, entry: Entry) -> None:
        self.jitted.add(entry)
        limit = self.jitted.session.config.core.max_entries
        while len(self.jitted.entries) > limit:
            oldest = self.jitted.entries[0]
            self._forget(oldest)
            self.jitted.stats.evicted += 1
            warnings.warn(
                f"tj: {self.jitted.name} has more than {limit} compiled entries; the oldest is "
                "dropped. Calls that keep changing recompile each time: see tj.guards(f), or "
                "raise [tool.tj] max_entries",
                TjWarning,
                stacklevel=users_stacklevel(),
            )
        self._refresh_rows()

    def _dead(self, entry: Entry) -> None:
        """An object the entry's guards know by identity is gone: so must the entry be."""
        if entry in self.by_entry:
            self._forget(entry)
            self.jitted.stats.invalidated += 1
            self._refresh_rows()

    def _forget(self, entry: Entry) -> None:
        self.by_entry.pop(entry, None)
        self.jitted.drop(entry)

    def _refresh_rows(self) -> None:
        self.rows = tuple(self.by_entry.values())
        self.frame.publish(self.rows)

    # ------------------------------------------------------------------ without capture

    def _without_capture(
        self, failure: dynamo.CaptureFailure, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run what could not be captured.

        If the program seems to raise, the original says how: its exception is the one the user
        expects; if there is none, the original runs from now on. Else the program's capturable
        parts are compiled through PyTorch's own hook from now on.
        """
        source = stack_source(failure.stack)
        if failure.raised:
            try:
                result = self.target(*args, **kwargs)
            except Exception as error:
                if source is not None:
                    add_note(error, f"tj: while compiling {self.jitted.name}, at {source}")
                raise
            self._fall_back(f"not captured: {_first_lines(failure.reason)}", source)
            self.elsewhere = self.target  # under the hook it would seem to raise, too
            return result
        self._fall_back(f"graph break: {_first_lines(failure.reason)}", source)
        self.elsewhere = self.hooked
        self.elsewhere_calls += 1
        return self.elsewhere(*args, **kwargs)

    def _fall_back(self, reason: str, source: Source | None) -> None:
        """Record a fallback, and warn of it once."""
        fallback = Fallback(reason, source)
        stats = self.jitted.stats
        if fallback in stats.fallbacks:
            return
        stats.fallbacks = (*stats.fallbacks, fallback)
        where = f"\n  at {source}" if source else ""
        warnings.warn(
            f"tj: {self.jitted.name}: {reason}{where}", TjWarning, stacklevel=users_stacklevel()
        )


class HookDispatcher(Dispatcher):
    """Leaves every call to PyTorch's own hook from the start, graph breaks or not."""

    def __init__(self, target: Any, jitted: Jitted, compiler: GraphCompiler) -> None:
        super().__init__(target, jitted, compiler)
        self.elsewhere = self.hooked


def _weakly(method: Callable[[Entry], None], entry: Entry) -> Callable[[], None]:
    """A call of ``method`` with ``entry`` that keeps neither alive; nothing once one is dead."""
    methods, entries = weakref.WeakMethod(method), weakref.ref(entry)

    def call() -> None:
        live, found = methods(), entries()
        if live is not None and found is not None:
            live(found)

    return call


def _both(
    check: Callable[[dict[str, Any]], bool], extra: Callable[[], bool] | None
) -> Callable[[dict[str, Any]], bool]:
    if extra is None:
        return check
    return lambda frame: extra() and check(frame)


def _guards(captured: list[str], extra: tuple[str, ...]) -> tuple[Guard, ...]:
    return tuple(Guard(text) for text in (*captured, *extra))


def _operations(trace: Any) -> set[str]:
    return {call.symbol.name.rpartition(".")[2] for call in trace.calls}


def _parameters(target: Any) -> tuple[str, ...]:
    """The names of ``target``'s positional parameters, as far as they can be known."""
    fn = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        return tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return ()


def _first_lines(reason: str, count: int = 3) -> str:
    return "; ".join(line.strip() for line in reason.splitlines()[:count] if line.strip())


def wrap_function(fn: Callable[..., Any], dispatcher: Dispatcher) -> Any:
    """``fn`` jitted: a function with the same name, signature and documentation."""
    call = dispatcher.call
    if hasattr(fn, "__name__"):
        functools.update_wrapper(call, fn)
    call.__tj__ = dispatcher.jitted  # type: ignore[attr-defined]
    return call
