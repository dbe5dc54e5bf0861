"""Calls of a jitted function: check the entries' guards, run the first that holds, else compile.

The callable made here does as little as can be per call: one dict of locals, one C++ guard check
per entry, one call of the entry's function. Everything else happens on a miss.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    CaptureError,
    Entry,
    Guard,
    Jitted,
    PassError,
    Source,
    TjError,
    add_note,
    collecting_less,
    notes,
)

from tj_torch.capture.ambient import ambient_mode, interpreting, mode_counters
from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.dynamo.guards import extra_guards, module_types
from tj_torch.capture.dynamo.members import members_read
from tj_torch.capture.sources import raising_source, stack_source
from tj_torch.dispatch.entries import Entries
from tj_torch.dispatch.recompiles import Explain, recurs
from tj_torch.dispatch.templates import Row, make_frame
from tj_torch.ops.flags import FLAGS, flags_of
from tj_torch.torch_private.runtime import pytree

if TYPE_CHECKING:
    from tj_torch.dispatch.compiler import GraphCompiler
    from tj_torch.dispatch.module import Dispatching

__all__ = ["Dispatcher", "HookDispatcher", "wrap_function"]


_RUN_LATER = (
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
    inspect.isgeneratorfunction,
)
"""Tests for functions whose call returns before the body has run."""

_INITIALIZING_CALLS = 3
"""Most calls that may initialize lazy modules; a program with more makes a new one each time."""


class Dispatcher:
    """State of one jitted callable: its rows, each a guard check with a compiled function.

    ``elsewhere`` runs all calls once the whole program cannot be captured. ``elsewhere_calls``
    counts these, ``found_late`` the calls whose entry another thread has just compiled.
    """

    def __init__(self, target: Any, jitted: Jitted, compiler: GraphCompiler) -> None:
        self.target = target
        self.jitted = jitted
        self.compiler = compiler
        frame = make_frame(target, self.miss, *mode_counters())
        self.root, self.own_hits = frame.root, frame.hits
        self._call: Callable[..., Any] | None = dynamo.inlined_as(frame.call, frame.root)
        self.parameters = _parameters(target)
        self.entries = Entries(jitted, frame.publish)
        self.elsewhere: Callable[..., Any] | None = None
        self.elsewhere_calls = 0
        self.found_late = 0
        self.explain: weakref.WeakKeyDictionary[Entry, Explain] = weakref.WeakKeyDictionary()
        self.initializing = 0
        jitted.refresh = _weakly(self._count)

    def take_call(self) -> Callable[..., Any]:
        """Hand over the callable for the user.

        The callable owns the dispatcher; a back reference would be a cycle.
        """
        call, self._call = self._call, None
        assert call is not None
        return call

    @property
    def limit(self) -> int:
        """Most entries that may differ in the value of one Python object."""
        return self.jitted.session.config.core.recompile_limit

    @cached_property
    def hooked(self) -> Callable[..., Any]:
        """The program under PyTorch's eval-frame hook."""
        return self.compiler.hooked(self.root, _weakly(self._skipped))

    def _skipped(self, reason: str, stack: Any) -> None:
        self.entries.fall_back(f"not captured: {_first_lines(reason)}", stack_source(stack))

    def hits(self) -> int:
        """Number of calls that found a compiled entry, here or below PyTorch's hook."""
        compiled_there = self.jitted.stats.misses - len(self.entries)
        found = self.own_hits() + self.found_late
        return found + max(0, self.elsewhere_calls - compiled_there)

    def _count(self) -> None:
        self.jitted.stats.hits = self.hits()

    # ------------------------------------------------------------------ misses

    def miss(self, frame: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compile for these arguments and run; or record a fallback and run without tj."""
        mode = ambient_mode()
        tracer = None if mode else interpreting((args, kwargs))
        if mode is not None or tracer is not None:
            self.entries.fall_back(
                f"called under {mode or tracer}; the original function runs", None
            )
            # A tracer knows the user's module, which is part of the model that it traces.
            original = self.target if mode else self.jitted.original()
            return original(*args, **kwargs)
        if self.elsewhere is not None:
            return self._run_elsewhere(self.elsewhere, args, kwargs)
        if any(is_one(self.target) for is_one in _RUN_LATER):
            self.entries.fall_back(
                "a coroutine or generator has no single call to compile; it runs as it is", None
            )
            self.elsewhere = self.target
            return self.target(*args, **kwargs)
        self.compiler.settle()
        if dynamo.function_modes():  # as `with torch.device(...)`: guarded by the hook alone
            return self._run_elsewhere(self.hooked, args, kwargs)
        try:
            # One compilation at a time in the process: sessions share expansions, and Dynamo has
            # global state. Dynamo's lock is taken first, as where Dynamo calls the backend.
            given = _tensors(self.target, args, kwargs)
            with dynamo.compiling(given), self.jitted.lock, collecting_less():
                row = self._compile(frame, args, kwargs)
        except dynamo.Uninitialized:
            return self._initialize(args, kwargs)
        except dynamo.CaptureFailure as error:
            failure = error.with_traceback(None)  # the traceback holds this frame: a cycle
        except (CaptureError, PassError) as error:
            self.entries.fall_back_from(error)
            self.elsewhere = self.target
            return self.target(*args, **kwargs)
        else:
            return row[1](*args, **kwargs)
        # Outside of the handler, so that the program's own error is not chained to Dynamo's.
        return self._without_capture(failure, args, kwargs)

    def _compile(self, frame: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Row:
        for row in self.entries.rows:  # another thread may have compiled it meanwhile
            if row[0](frame):
                self.found_late += 1
                return row
        recurring = recurs(self.explain.values(), frame, self.limit)
        if recurring is not None:
            self.entries.fall_back(recurring, None)
            return _never, self._noting(self.target)
        options = self.jitted.options
        with self.jitted.stats.timing("capture"):
            captured = dynamo.capture(
                self.root, args, kwargs, dynamic=options.dynamic, opaque=self.compiler.opaque
            )
        entry, row = self._build(captured)
        self.entries.add(entry, row)
        if not row[0](frame):
            reason = "the guards of a new entry do not hold for its own arguments"
            self.entries.fall_back(reason, None)
        return row

    def _build(self, captured: dynamo.Capture) -> tuple[Entry, Row]:
        compilation = None
        if captured.graph is not None:
            compilation = self.compiler.compile(
                captured.graph, captured.examples, captured.sources, self.parameters
            )
        entry = Entry(compilation)
        guarding = self.compiler.own("guards", dynamo.CaptureFailure)
        with self.jitted.stats.timing("guards"), guarding:
            return entry, self._guarded(captured, entry)

    def _guarded(self, captured: dynamo.Capture, entry: Entry) -> Row:
        """Build the row of ``entry``, and set the function that prints its guards."""
        compilation = entry.compilation
        function = None if compilation is None else compilation.function
        built = captured.build(function, self.entries.on_dead(entry))
        table = self.jitted.session.tables[FLAGS]
        flags = () if compilation is None else flags_of(compilation.traces[0], table)
        check, texts = extra_guards(
            module_types(self.target, captured.graph, built.traced_codes),
            flags,
            members_read(captured.noticed, built.traced_codes),
            captured.noticed.subclasses,
        )
        self.explain[entry] = built.explain
        # Not `built` itself: it holds the traced code, whose death must end the entry.
        captured_guards = built.guards
        entry.guards = lambda: _guards(captured_guards(), texts)
        if not any(isinstance(e, torch.Tensor) for e in captured.examples):
            check = _outside_of_modes(check)
        # A program without tensor operations has no graph: the function itself runs, since Dynamo
        # may have evaluated parts of it at capture.
        run = self._noting(self.target) if compilation is None else built.run
        return _both(built.check, check), run

    # ------------------------------------------------------------------ without capture

    def _initialize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that initializes lazy modules; later calls can be captured.

        A program that makes a new lazy module in each call is not captured at all.
        """
        self.initializing += 1
        if self.initializing > _INITIALIZING_CALLS:
            self.entries.fall_back("each call initializes a lazy module; it runs as it is", None)
            self.elsewhere = self.target
        return self.target(*args, **kwargs)

    def _without_capture(
        self, failure: dynamo.CaptureFailure, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call of a program that could not be captured.

        If Dynamo found that the program raises, the original function runs: its exception is the
        one the user expects. If it raises none, the original runs from now on. Otherwise there is
        a graph break: the parts are compiled through PyTorch's eval-frame hook from now on.
        """
        source = stack_source(failure.stack)
        if failure.raised:
            try:
                result = self.target(*args, **kwargs)
            except Exception as error:
                _note_line(self.jitted, error, "while compiling", source)
                raise
            self.entries.fall_back(f"not captured: {_first_lines(failure.reason)}", source)
            self.elsewhere = self.target  # under the hook, Dynamo would find an error, too
            return result
        reason = f"graph break: {_first_lines(failure.reason)}"
        self.entries.fall_back(reason, source, silent=failure.wanted)
        self.elsewhere = self.hooked
        return self._run_elsewhere(self.hooked, args, kwargs)

    def _run_elsewhere(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.elsewhere_calls += 1
        return self._noting(function)(*args, **kwargs)

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with the user's line added as a note to the errors it raises."""
        jitted = self.jitted

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                _note_line(jitted, error, "in", None)
                raise

        return run


class HookDispatcher(Dispatcher):
    """Dispatcher that leaves all calls to PyTorch's eval-frame hook from the start."""

    def __init__(self, target: Any, jitted: Jitted, compiler: GraphCompiler) -> None:
        super().__init__(target, jitted, compiler)
        self.elsewhere = self.hooked


def _never(_: dict[str, Any]) -> bool:
    """Guard check that never holds."""
    return False


def _note_line(jitted: Jitted, error: Exception, when: str, other: Source | None) -> None:
    """Add a note with the user's line, else ``other``, to ``error``, unless tj added one before."""
    if isinstance(error, TjError) or any(n.startswith("tj:") for n in notes(error)):
        return
    source = raising_source(error) or other
    if source is not None:
        add_note(error, f"tj: {when} {jitted.name}, at {source}")


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """``method`` through a weak reference to its object; does nothing once the object is gone."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        live = reference()
        if live is not None:
            live(*args)

    return call


def _outside_of_modes(check: Callable[[], bool] | None) -> Callable[[], bool]:
    """``check`` that also fails under a mode that `ambient_mode` names.

    For programs without tensor arguments; guards on tensors would show such a mode.
    """
    if check is None:
        return lambda: ambient_mode() is None
    return lambda: ambient_mode() is None and check()


def _both(
    check: Callable[[dict[str, Any]], bool], extra: Callable[[], bool] | None
) -> Callable[[dict[str, Any]], bool]:
    if extra is None:
        return check
    return lambda frame: extra() and check(frame)


def _guards(captured: list[str], extra: tuple[str, ...]) -> tuple[Guard, ...]:
    return tuple(Guard(text) for text in (*captured, *extra))


def _tensors(target: Any, *arguments: Any) -> Iterator[Any]:
    """Leaves of a call's arguments, and parameters and buffers of a module."""
    yield from pytree.tree_leaves(arguments)
    if isinstance(target, torch.nn.Module):
        yield from itertools.chain(target.parameters(), target.buffers())


def _parameters(target: Any) -> tuple[str, ...]:
    """Names of ``target``'s parameters; empty where Python knows no signature."""
    fn = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        return tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return ()


def _first_lines(reason: str, count: int = 3) -> str:
    return "; ".join(line.strip() for line in reason.splitlines()[:count] if line.strip())


def wrap_function(fn: Callable[..., Any], dispatcher: Dispatching) -> Any:
    """``fn`` jitted: a function with the same name, signature and documentation."""
    call = dispatcher.take_call()
    if hasattr(fn, "__name__"):
        functools.update_wrapper(call, fn)
    call.__tj__ = dispatcher.jitted  # type: ignore[attr-defined]
    return call
