"""Programs that TorchDynamo captures: whole, or below its hook at a graph break."""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import OVERWRITES, CaptureError, Compilation, Entry, Fallback, Jitted, PassError

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.dynamo.module_paths import name_modules
from tj_torch.capture.handled_calls import all_run
from tj_torch.capture.inner_gradients import InnerGradientsError
from tj_torch.capture.sources import stack_source
from tj_torch.dispatch.ahead import prepare, real
from tj_torch.dispatch.changed_objects import (
    Deferred,
    decides_otherwise,
    keeping_changes,
    leaves_nothing,
    with_changes,
)
from tj_torch.dispatch.copies import copy_containers
from tj_torch.dispatch.dispatcher import Dispatcher, Made, weakly
from tj_torch.dispatch.error_notes import note_line, with_notes
from tj_torch.dispatch.fallbacks import first_lines
from tj_torch.dispatch.module import forward_of
from tj_torch.dispatch.outer_hooks import around, has_outer_hooks
from tj_torch.dispatch.templates import Row, make_frame
from tj_torch.guards.ambient import guard_modes, mode_counters
from tj_torch.guards.entry import EntryGuards
from tj_torch.guards.flags import guard_flags
from tj_torch.guards.guard import Guards
from tj_torch.guards.members import guard_members, guard_sizes, running_members
from tj_torch.guards.modules import forwards, guard_global_hooks, module_types
from tj_torch.guards.subclasses import guard_subclasses
from tj_torch.guards.tensors import guard_metadata
from tj_torch.ops.settings.flags import FLAGS, flags_of
from tj_torch.runtime.giving_way import answering
from tj_torch.torch_private.runtime import pytree

if TYPE_CHECKING:
    import types

    from tj_torch.torch_private.switches import Stances

__all__ = ["DynamoPrograms"]

_RUN_LATER = (
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
    inspect.isgeneratorfunction,
)
"""Tests for functions whose call returns before the body has run."""

_NOT_BEHIND = (
    "it runs in eager, since PyTorch's hook, which would compile its parts, does so within a call "
    'and not behind it (on_miss="eager")'
)

_INITIALIZING_CALLS = 3
"""Most calls that may initialize lazy modules; a program with more makes a new one each time."""


@dataclass(slots=True)
class _Call:
    """A call that no row has answered: ``frame`` has the locals that guards are checked on."""

    frame: dict[str, Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def values(self) -> Any:
        return self.args, self.kwargs

    def copied(self) -> _Call:
        frame, args, kwargs = copy_containers((self.frame, self.args, self.kwargs))
        return _Call(frame, args, kwargs)

    def found(self, rows: tuple[Row, ...]) -> Row | None:
        return next((row for row in rows if row[0](self.frame)), None)

    def holds(self, row: Row) -> bool:
        return row[0](self.frame)

    def run(self, row: Row) -> Any:
        return row[1](*self.args, **self.kwargs)

    def instead(self, function: Callable[..., Any]) -> Any:
        return function(*self.args, **self.kwargs)


class DynamoPrograms:
    """Programs of a function or module ``original``; unless ``whole``, all run below Dynamo's hook.

    ``module`` is the module whose ``forward`` the function ``original`` calls, without its hooks.
    """

    failures: tuple[type[Exception], ...] = (
        dynamo.Uninitialized,
        dynamo.CaptureFailure,
        CaptureError,
        PassError,
    )

    def __init__(
        self,
        original: Callable[..., Any],
        whole: bool = True,
        module: torch.nn.Module | None = None,
    ) -> None:
        self.original = original
        self.module = original if isinstance(original, torch.nn.Module) else module
        self.program = original if module is None else module
        self.whole = whole
        self.parameters = _parameters(self.program)
        self.initializing = 0
        self.defers = True
        self._hooked: Callable[..., Any] | None = None
        self._inner: Dispatcher[Row] | None = None
        self._around: Callable[..., Any] | None = None

    def make_callable(self, dispatcher: Dispatcher[Row]) -> Callable[..., Any]:
        """Make the callable; see `make_frame`."""

        def miss(frame: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return dispatcher.miss(_Call(frame, args, kwargs))

        frame = make_frame(self.original, miss, *mode_counters())
        self.root, self._hits, self._publish = frame.root, frame.hits, frame.publish
        self._accept = frame.accept
        # Every call is a miss then, and goes to the hook at once.
        if not self.whole:
            dispatcher.elsewhere = self.hooked(dispatcher)

        bind = frame.bind  # not the frame, which holds the callable that is to hold this

        def compile_for(*args: Any, **kwargs: Any) -> None:
            """Compile for a call with such arguments, without running it."""
            args, kwargs = real(args, kwargs)
            prepare(dispatcher, _Call(*bind(*args, **kwargs)))

        frame.call.compile_for = compile_for  # type: ignore[attr-defined]
        return dynamo.inlined_as(frame.call, frame.root)

    def publish(self, rows: tuple[Row, ...]) -> None:
        """Set the rows that the callable tries."""
        self._publish(rows)

    def noting(self, row: Row, used: Callable[[], None]) -> Row:
        """The row with a call of ``used`` before its program."""
        check, run = row

        def noted(*args: Any, **kwargs: Any) -> Any:
            used()
            return run(*args, **kwargs)

        return check, noted

    def answering(self, row: Row) -> Row:
        """The row, to whose program a thread that compiles gives way."""
        check, run = row

        def answer(*args: Any, **kwargs: Any) -> Any:
            with answering():
                return run(*args, **kwargs)

        return check, answer

    def hits(self) -> int:
        """Number of calls that a row has answered, those within outer hooks included."""
        return self._hits() + (0 if self._inner is None else self._inner.hits())

    def accept(self, known: Stances, stance: Any) -> None:
        """Let rows answer calls while ``stance`` is PyTorch's stance, which ``known`` has."""
        self._accept(known, stance)

    def hooked(self, dispatcher: Dispatcher[Row]) -> Callable[..., Any]:
        """The program under PyTorch's eval-frame hook."""
        if self._hooked is None:
            skipped = weakly(dispatcher.entries.skipped)
            own = weakref.ref(self)  # PyTorch's hook keeps what it is given
            hooked = dispatcher.compiler.hooked(
                self.root, skipped, lambda: getattr(own(), "program", None)
            )
            self._hooked = with_notes(dispatcher.jitted, hooked)
        return self._hooked

    def traced(self, jitted: Jitted) -> Callable[..., Any]:
        """The user's unjitted program, by the object that the tracer knows."""
        return jitted.original() if self.module in (None, self.original) else self.original

    def outside(self, dispatcher: Dispatcher[Row]) -> Callable[..., Any] | None:
        """Function for a call that is not captured whole; None for a call that is.

        The function is the program itself, if its call returns before its body has run; or Dynamo's
        hook, in function modes; or a function that runs hooks of modules around the captured
        ``forward``, if these hooks are not captured.
        """
        if any(is_one(self.original) for is_one in _RUN_LATER):
            dispatcher.entries.fall_back(
                "a coroutine or generator has no single call to compile; it runs as it is", None
            )
            return self._left(dispatcher)
        dispatcher.compiler.settle()
        if dynamo.function_modes() and dispatcher.background is not None:
            dispatcher.entries.stand_aside(f"called under a default device; {_NOT_BEHIND}")
            return self.original
        if dynamo.function_modes():  # as `with torch.device(...)`: guarded by the hook alone
            dispatcher.elsewhere_calls += 1
            return self.hooked(dispatcher)
        if self.module is self.original and has_outer_hooks(self.module):
            return self._within_hooks(dispatcher)
        return None

    def _within_hooks(self, dispatcher: Dispatcher[Row]) -> Callable[..., Any]:
        """Call of the module's hooks around a compiled ``forward``, which has its own entries."""
        if self._around is None:
            jitted, module = dispatcher.jitted, self.module
            assert module is not None
            programs = DynamoPrograms(forward_of(module), module=module)
            self._inner = Dispatcher(jitted, dispatcher.compiler, programs)
            dispatcher.count_hits()  # instead of the inner dispatcher's
            self._around = around(module, jitted.original, self._inner.take_call())
        return self._around

    def given(self, call: _Call) -> Iterator[Any]:
        """Leaves of a call's arguments, and parameters and buffers of a module."""
        yield from pytree.tree_leaves(call.values)
        if self.module is not None:
            yield from itertools.chain(self.module.parameters(), self.module.buffers())

    # ------------------------------------------------------------------ compiling

    def compile(self, dispatcher: Dispatcher[Row], call: _Call) -> Made[Row]:
        """Capture and compile the program for ``call``.

        :raises Exception: one of ``failures``; a `ChangedError` beside the program.
        """
        jitted, compiler = dispatcher.jitted, dispatcher.compiler
        jitted.original()  # a jitted module takes the class that its module has now
        with jitted.stats.timing("capture"):
            captured = dynamo.capture(
                self.root,
                call.args,
                call.kwargs,
                dynamic=jitted.options.dynamic,
                opaque=compiler.opaque,
                defers=self.defers,
            )
        compilation = None
        if captured.graph is not None:
            if self.program is not self.original:
                name_modules(captured.graph, self.program, None)
            try:
                compilation = compiler.compile(
                    captured.graph, captured.examples, captured.sources, self.parameters
                )
            except InnerGradientsError as error:
                raise dynamo.CaptureFailure(error.message, None, raised=False) from error
            captured.check_inputs(compilation.traces[0])
        entry = Entry(compilation)
        let_through = (dynamo.CaptureFailure, dynamo.ChangedError)
        with jitted.stats.timing("guards"), compiler.own("guards", *let_through):
            return self._guarded(captured, entry, dispatcher)

    def _guarded(
        self, captured: dynamo.Capture, entry: Entry, dispatcher: Dispatcher[Row]
    ) -> Made[Row]:
        """Build the row of ``entry``, and set the function that prints its guards."""
        entries = dispatcher.entries
        compilation = entry.compilation
        function = None if compilation is None else compilation.function
        changes = captured.noticed.changes
        draws, deferred = captured.noticed.draws, self._deferred(captured, dispatcher)
        reruns = compilation is not None and (
            changes or deferred is not None or decides_otherwise(compilation.traces[0])
        )
        if compilation is not None and deferred is not None:
            again = leaves_nothing(compilation.traces, draws=draws)
            rules = entries.jitted.session.tables[OVERWRITES]
            if not (again and all_run(captured.handled, compilation.traces, rules)):
                raise captured.break_instead()
        if compilation is not None and reruns:
            function = keeping_changes(entries.jitted, compilation, draws=draws, changes=changes)
        built = captured.build(function, entries.on_dead(entry))
        # Not `built` itself: it holds the traced code, whose death must end the entry.
        own = self._own_guards(captured, compilation, built.traced_codes, entries.jitted)
        refs = built.guards.by_identity.items()
        guard_metadata(own, {name: x for name, ref in refs if (x := ref()) is not None})
        guards = EntryGuards(built.guards, own)
        entry.guards = guards.printed
        # A program without tensor operations has no graph: the function itself runs, since Dynamo
        # may have evaluated parts of it at capture.
        run = built.run
        if compilation is None:
            run = with_notes(entries.jitted, self.original)
        elif reruns:
            run = with_changes(entries.jitted, run, self.original, deferred)
        return Made(entry, (guards.check(), run), guards.failed)

    def _deferred(self, captured: dynamo.Capture, dispatcher: Dispatcher[Row]) -> Deferred | None:
        """The record of calls whose data ``captured`` is not for; None if it is for all."""
        if not captured.noticed.deferred:
            return None
        reason, stack = captured.noticed.deferred[0]
        programs, entries = weakref.ref(self), weakly(dispatcher.entries.clear)

        def leave() -> None:
            own = programs()
            # With `fullgraph` an error would say that the graph breaks.
            if own is not None and not fullgraph:
                own.defers = False
                entries()

        fullgraph = dispatcher.jitted.fullgraph
        return Deferred(reason, stack_source(stack), leave)

    def _own_guards(
        self,
        captured: dynamo.Capture,
        compilation: Compilation | None,
        codes: Sequence[types.CodeType],
        jitted: Jitted,
    ) -> Guards:
        """Guards that Dynamo leaves out."""
        guards, noticed = Guards(["frame"]), captured.noticed
        # Without a tensor among the inputs no guard of Dynamo's shows a mode.
        if not any(isinstance(e, torch.Tensor) for e in captured.examples):
            guard_modes(guards)
        classes = module_types(self.module or self.original, captured.graph, codes)
        running = running_members(noticed.classes, frozenset(codes))
        guard_members(guards, (*forwards(classes), *noticed.lookups.values(), *running))
        guard_subclasses(guards, noticed.subclasses)
        guard_sizes(guards, noticed.classes)
        if classes:
            guard_global_hooks(guards)
        if compilation is not None:
            table = jitted.session.tables[FLAGS]
            guard_flags(guards, flags_of(compilation.traces[0], table))
        return guards

    # ------------------------------------------------------------------ without capture

    def without(
        self,
        dispatcher: Dispatcher[Row],
        failure: dynamo.Uninitialized | dynamo.CaptureFailure | CaptureError | PassError,
    ) -> Callable[..., Any]:
        """Function that runs a call whose capture has failed.

        If Dynamo found that the program raises, the original function runs: its exception is the
        one the user expects. If it raises none, the original runs from now on. At a graph break
        the parts are compiled through PyTorch's eval-frame hook from now on.
        """
        if isinstance(failure, dynamo.Uninitialized):
            return self._initialize(dispatcher)
        if not isinstance(failure, dynamo.CaptureFailure):
            dispatcher.entries.fall_back_from(failure)
            return self._left(dispatcher)
        source, jitted = stack_source(failure.stack), dispatcher.jitted
        if failure.raised and dispatcher.background is not None:
            # The call has been answered: it raised nothing.
            dispatcher.entries.skipped(failure.reason, failure.stack)
            return self._left(dispatcher)
        if failure.raised:
            reason, stack = failure.reason, failure.stack
            return dispatcher.trial(
                self.original,
                with_notes(jitted, self.original),  # the hook would find an error, too
                lambda error: note_line(jitted, error, "while compiling", source),
                lambda: dispatcher.entries.skipped(reason, stack),
            )
        reason = f"graph break: {first_lines(failure.reason)}"
        jitted.note_break(Fallback(reason, source))
        if dispatcher.background is not None:
            dispatcher.entries.fall_back(f"{reason}; {_NOT_BEHIND}", source, silent=failure.wanted)
            return self._left(dispatcher)
        dispatcher.entries.fall_back(reason, source, silent=failure.wanted)
        dispatcher.elsewhere = self.hooked(dispatcher)
        dispatcher.elsewhere_calls += 1
        return dispatcher.elsewhere

    def _left(self, dispatcher: Dispatcher[Row]) -> Callable[..., Any]:
        """The original, which runs all later calls as well."""
        dispatcher.elsewhere = with_notes(dispatcher.jitted, self.original)
        return dispatcher.elsewhere

    def _initialize(self, dispatcher: Dispatcher[Row]) -> Callable[..., Any]:
        """The original, for a call that initializes lazy modules; later calls can be captured.

        A program that makes a new lazy module in each call is not captured at all.
        """
        self.initializing += 1
        if self.initializing <= _INITIALIZING_CALLS:
            return self.original
        dispatcher.entries.fall_back("each call initializes a lazy module; it runs as it is", None)
        return self._left(dispatcher)


def _parameters(target: Any) -> tuple[str, ...]:
    """Names of ``target``'s parameters; empty where Python knows no signature."""
    fn = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        return tuple(inspect.signature(fn).parameters)
    # `inspect.signature` raises ValueError for builtins, TypeError for what is not callable.
    except (TypeError, ValueError):
        return ()
