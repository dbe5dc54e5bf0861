"""Misses of a jitted program: compile for the call and run, or run the call without tj.

A call that finds its entry does not come here: the callable of a source of programs checks guards
and runs entries. It does as little as possible per call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from tj_core.internal import collecting_less

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.dispatch.background import Background
from tj_torch.dispatch.entries import Entries
from tj_torch.dispatch.error_notes import with_notes
from tj_torch.dispatch.fallbacks import stand_aside
from tj_torch.dispatch.raised_calls import RaisedCalls
from tj_torch.dispatch.recompiles import Explain, changed, recurs
from tj_torch.dispatch.switches import Switches
from tj_torch.guards.ambient import ambient_mode, interpreting

if TYPE_CHECKING:
    from tj_core.extend import Entry, Jitted

    from tj_torch.dispatch.compiler import GraphCompiler
    from tj_torch.torch_private.switches import Stances

__all__ = ["MISSED", "Call", "Dispatcher", "Made", "Programs", "weakly"]

R = TypeVar("R")
"""Type of a row: a source's form of an entry, which checks guards and runs the program."""

MISSED = object()
"""Result of a row whose guards do not hold."""


class Made(NamedTuple, Generic[R]):
    """A compiled program; ``explain`` returns its failed guard, for the limit of recompilations.

    ``explain`` is None if there is no such limit.
    """

    entry: Entry
    row: R
    explain: Explain | None


class Call(Protocol[R]):
    """A call that no row has answered."""

    @property
    def values(self) -> Any:
        """Its arguments, a tree."""
        ...

    @property
    def frame(self) -> dict[str, Any]:
        """The locals on which `Made.explain` checks guards."""
        ...

    def copied(self) -> Call[R]:
        """The same call, with the containers of its arguments as they are now."""
        ...

    def found(self, rows: tuple[R, ...]) -> R | None:
        """Row to try, which another thread has added meanwhile; None if there is none."""
        ...

    def holds(self, row: R) -> bool:
        """Test if the guards of a new ``row`` hold; True if only a run can tell."""
        ...

    def run(self, row: R) -> Any:
        """Result of ``row``, or `MISSED`."""
        ...

    def instead(self, function: Callable[..., Any]) -> Any:
        """Result of ``function``, called as the jitted program was."""
        ...


class Programs(Protocol[R]):
    """A source of programs: it captures, builds guards, and makes the callable.

    ``failures`` are the classes of errors by which a capture fails. The methods of a source get the
    dispatcher as an argument, since a reference to it would be a cycle.
    """

    failures: tuple[type[Exception], ...]

    @property
    def original(self) -> Callable[..., Any]:
        """The user's program."""
        ...

    def make_callable(self, dispatcher: Dispatcher[R]) -> Callable[..., Any]:
        """Make the callable for the user, which passes calls that no row answers to `miss`."""
        ...

    def publish(self, rows: tuple[R, ...]) -> None:
        """Set the rows that the callable tries."""
        ...

    def noting(self, row: R, used: Callable[[], None]) -> R:
        """``row``, which calls ``used`` when it answers a call."""
        ...

    def accept(self, known: Stances, stance: Any) -> None:
        """Let rows answer calls while ``stance`` is PyTorch's stance, which ``known`` has."""
        ...

    def hits(self) -> int:
        """Number of calls that a row has answered."""
        ...

    def traced(self, jitted: Jitted) -> Callable[..., Any]:
        """The program for a tracer, such as ``torch.fx.symbolic_trace``."""
        ...

    def outside(self, dispatcher: Dispatcher[R]) -> Callable[..., Any] | None:
        """Function that runs a call which must not be captured; None for any other call."""
        ...

    def given(self, call: Any) -> Iterable[Any]:
        """Values that compilation must not change."""
        ...

    def compile(self, dispatcher: Dispatcher[R], call: Any) -> Made[R]:
        """Compile a program for ``call``.

        :raises Exception: one of ``failures``.
        """
        ...

    def without(self, dispatcher: Dispatcher[R], failure: Any) -> Callable[..., Any]:
        """Function that runs a call whose capture has failed; records the fallback."""
        ...


class _SwitchedOffError(Exception):
    """A call is not compiled for, by the stance of PyTorch: ``function`` runs it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__("PyTorch's stance says that nothing is compiled")
        self.function = function


class _RefusedError(Exception):
    """No program is kept for a call, and the text says why; another call may have one."""


_UNFIT = "the guards of a new entry do not hold for its own arguments"


class Dispatcher(Generic[R]):
    """State of one jitted callable: its entries, and the function that runs calls without them.

    ``elsewhere`` runs all calls as soon as the program cannot be captured. ``elsewhere_calls``
    counts these calls, ``found_late`` the calls whose entry another thread has just compiled.
    """

    def __init__(self, jitted: Jitted, compiler: GraphCompiler, programs: Programs[R]) -> None:
        self.jitted = jitted
        self.compiler = compiler
        self.programs = programs
        self.entries: Entries[R] = Entries(jitted, programs.publish, programs.noting)
        self.background: Background | None = None
        if jitted.on_miss == "eager":
            self.background = Background()
        self.elsewhere: Callable[..., Any] | None = None
        self.elsewhere_calls = 0
        self.found_late = 0
        self.raised = RaisedCalls()
        self.explain: weakref.WeakKeyDictionary[Entry, Explain] = weakref.WeakKeyDictionary()
        self.switches = Switches(jitted, programs.original, programs.accept)
        self._call: Callable[..., Any] | None = programs.make_callable(self)
        self.count_hits()
        if self.switches.off is not None:
            stand_aside(jitted, f"not compiled: {self.switches.off}", silent=True)

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

    def hits(self) -> int:
        """Number of calls that found a compiled entry, here or below PyTorch's hook."""
        stats = self.jitted.stats
        compiled_there = stats.misses - stats.eager - self.entries.called
        found = self.programs.hits() + self.found_late
        return found + max(0, self.elsewhere_calls - compiled_there)

    def count_hits(self) -> None:
        """Let the statistics count this dispatcher's hits."""
        self.jitted.refresh = weakly(self._count)

    def _count(self) -> None:
        self.jitted.stats.hits = self.hits()

    def miss(self, call: Call[R]) -> Any:
        """Compile for ``call`` and run; or record a fallback and run without tj."""
        switched = self.switches.instead()
        if switched is not None:
            return call.instead(switched)
        mode = ambient_mode()
        tracer = None if mode else interpreting(call.values)
        if mode is not None or tracer is not None:
            self.entries.stand_aside(f"called under {mode or tracer}; the original function runs")
            # A tracer knows the user's module, which is part of the model that it traces.
            programs = self.programs
            return call.instead(programs.original if mode else programs.traced(self.jitted))
        if self.elsewhere is not None:
            self.elsewhere_calls += 1
            return call.instead(self.elsewhere)
        function = self.programs.outside(self)
        if function is None and self.raised:
            function = self.raised.running(call.values, self.programs.original)
        if function is not None:
            return call.instead(function)
        if self.background is not None:
            return self.background.answer(self, call)
        return self._compiled(call)

    def _compiled(self, call: Call[R]) -> Any:
        """Result of a program for ``call``: one that another thread has added, or a new one."""
        while True:
            try:
                row, late = self.compile(call, called=True)
            except self.failures as error:
                failure = error.with_traceback(None)  # the traceback holds this frame: a cycle
                break
            result = call.run(row)
            if result is not MISSED:
                self.found_late += late
                return result
            if not late:
                failure = _RefusedError(_UNFIT)
                break
        # Outside of the handler, so that the program's own error is not chained to the failure.
        try:
            function = self.without(failure)
        finally:
            del failure
        return call.instead(function)

    def compile(self, call: Call[R], *, called: bool = False) -> tuple[R, bool]:
        """Row for ``call``, which is ``called`` or prepared for; True if another thread made it.

        :raises Exception: an error for `without`.
        """
        if self.switches.compile:
            self._limit(call)  # before what a compilation alone needs: each such call comes here
        # One compilation at a time in the process: sessions share expansions, and Dynamo
        # has global state. Dynamo's lock is taken first, as where it calls the backend.
        given = self.programs.given(call)
        with (
            dynamo.compiling(given),
            self.jitted.lock,
            self.jitted.showing(),
            collecting_less(),
        ):
            late = call.found(self.entries.rows)
            return (self._compile(call, called), False) if late is None else (late, True)

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """Classes of the errors by which there is no program for a call."""
        return (_RefusedError, _SwitchedOffError, *self.programs.failures)

    def uncompiled(self, call: Call[R]) -> Callable[..., Any] | None:
        """Function that runs ``call`` if PyTorch's stance forbids to compile for it; else None."""
        return self.switches.uncompiled(lambda: self._failing(call))

    def _limit(self, call: Call[R]) -> None:
        """Raise an error for `without` if enough programs were compiled for calls like this one."""
        reason = recurs(self.explain.values(), call.frame, self.limit)
        if reason is not None:
            raise _RefusedError(reason)

    def _compile(self, call: Call[R], called: bool) -> R:
        function = self.uncompiled(call)
        if function is not None:
            raise _SwitchedOffError(function)
        self._limit(call)  # another thread may have compiled meanwhile
        why = self.jitted.reason = self._changed(call)
        made = self.programs.compile(self, call)
        made.entry.reason = why
        if made.explain is not None:
            self.explain[made.entry] = made.explain
        self.entries.add(made.entry, made.row, called=called)
        if not call.holds(made.row):
            self.entries.fall_back(_UNFIT, None)
        return made.row

    def _failing(self, call: Call[R]) -> Iterable[str]:
        """The guards that fail for ``call``, one of each entry that can tell."""
        return filter(None, (explain(call.frame) for explain in self.explain.values()))

    def _changed(self, call: Call[R]) -> str:
        """The first guard of the newest entry that fails for ``call``, in words; else empty."""
        newest = self.jitted.last
        explain = self.explain.get(newest) if newest is not None else None
        guard = explain(call.frame) if explain is not None else None
        return changed(guard, call.frame) if guard else ""

    def without(self, failure: Exception) -> Callable[..., Any]:
        """Function that runs a call without a program, because of ``failure``.

        A failure of an unknown kind comes from a compilation behind a call.
        """
        if isinstance(failure, _SwitchedOffError):
            return failure.function
        if isinstance(failure, self.programs.failures):
            return self.programs.without(self, failure)
        if isinstance(failure, _RefusedError):
            self.entries.fall_back(str(failure), None)
        else:
            text = f"{type(failure).__name__}: {failure}"
            source = getattr(failure, "source", None)
            self.entries.fall_back(f"not compiled behind the program: {text}", source)
            self.elsewhere = self.programs.original
        return with_notes(self.jitted, self.programs.original)

    def trial(
        self,
        program: Callable[..., Any],
        later: Callable[..., Any],
        note: Callable[[Exception], None],
        record: Callable[[], None],
    ) -> Callable[..., Any]:
        """``program``; unless it raises, the fallback is recorded, and later calls run ``later``.

        If it raises, the user gets this error; ``note`` may add a note to it. Calls alike then
        run without a capture.
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = program(*args, **kwargs)
            except Exception as error:
                self.raised.add((args, kwargs), note)
                note(error)
                raise
            record()
            self.elsewhere = later
            return result

        return run


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """``method`` through a weak reference to its object; does nothing once the object is gone."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        live = reference()
        if live is not None:
            live(*args)

    return call
