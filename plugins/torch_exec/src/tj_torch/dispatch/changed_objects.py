"""Errors of compiled programs after which the program runs as it is; who says what is lost.

Such programs change Python objects, or were captured for most data: see `Deferred`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.extend import NumberProxy, Stage, alias_facts

from tj_torch.dispatch.error_notes import with_notes
from tj_torch.dispatch.fallbacks import stand_aside, warn
from tj_torch.functionalize.around import draws_from, generators_in
from tj_torch.runtime.rerun import Undone, asking, undoing
from tj_torch.torch_private.ops import ASSERTED_NUMBER

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol, Compilation, Jitted, Source, Trace

__all__ = [
    "Deferred",
    "decides_otherwise",
    "keeping_changes",
    "leaves_nothing",
    "losing",
    "with_changes",
]

Run = Callable[..., Any]

_COST, _MOST = 8, 32
"""Amount that a call in eager adds to a balance, where others take one off, and the largest."""


@dataclass(slots=True)
class Deferred:
    """Calls whose data a program was not captured for, for ``reason``, first at ``source``.

    These calls run as they are, after the compiled program has raised. If they are more than one in
    nine, ``leave`` is called: the program is to be captured with graph breaks instead.
    """

    reason: str
    source: Source | None
    leave: Callable[[], None]
    owed: int = 0

    def note(self, jitted: Jitted) -> None:
        """Note such a call, and warn of the first one."""
        stand_aside(jitted, f"some calls run in eager: {self.reason}", self.source)
        self.owed += _COST
        if self.owed > _MOST:
            self.leave()


def keeping_changes(jitted: Jitted, compilation: Compilation, *, draws: bool, changes: bool) -> Run:
    """The function of ``compilation``, for `with_changes`.

    If it raises and nothing is left of its run, the error is marked. Otherwise a warning says that
    changes are lost, if the program ``changes`` Python objects. ``draws``: it asks Python for
    random numbers before its graph.
    """
    function, acquired = compilation.function, compilation.traces[0]
    if draws or any(map(_is_seen, acquired.calls)):
        return losing(function, jitted.name) if changes else function
    if _writes(acquired):  # the functional form marks its errors itself
        return losing(asking(function), jitted.name) if changes else asking(function)
    devices = sorted(set(draws_from(acquired)))
    return undoing(function, devices, generators_in(acquired))


def leaves_nothing(traces: Sequence[Trace], *, draws: bool) -> bool:
    """Test if nothing is left of a run that raises of the program with ``traces``.

    ``draws`` is as in `keeping_changes`.
    """
    acquired = traces[0]
    functional = any(trace.stage is Stage.FUNCTIONAL for trace in traces)
    seen = draws or any(map(_is_seen, acquired.calls))
    return not seen and (functional or not _writes(acquired))


def with_changes(jitted: Jitted, run: Run, original: Run, deferred: Deferred | None) -> Run:
    """``run``, or ``original`` with the same arguments if it raises and nothing is left of that.

    If ``original`` returns, a warning says so.
    """
    name, original = jitted.name, with_notes(jitted, original)

    def program(*args: Any, **kwargs: Any) -> Any:
        try:
            result = run(*args, **kwargs)
        except Undone as undone:
            text = f"{type(undone.error).__name__}: {undone.error}"
        else:
            if deferred is not None and deferred.owed:
                deferred.owed -= 1
            return result
        # Outside of the handler: the program's own error is not chained to that of the graph.
        result = original(*args, **kwargs)
        if deferred is not None:
            deferred.note(jitted)
        else:
            warn(
                f"tj: {name}, compiled, raised {text}\nIn eager it did not: that result is returned"
            )
        return result

    return program


def decides_otherwise(trace: Trace) -> bool:
    """Test if ``trace`` may raise where eager does not, or says it in other words.

    It may assert a number that depends on data, where eager accepts another one: ``x[mask] + y``
    broadcasts a row that the mask selects alone. It selects what the program takes as ``x[i]``.
    """
    return any(
        call.symbol.qualname == str(ASSERTED_NUMBER)
        or (call.symbol.qualname == "torch.select" and _depends_on_data(call.args[-1]))
        for call in trace.calls
    )


def _depends_on_data(index: Any) -> bool:
    """Test for a number that no guard can bound: others select what guards have checked."""
    return isinstance(index, NumberProxy) and index.hint is None


def losing(function: Run, name: str) -> Run:
    """``function`` with a warning beside its errors that changes of objects are lost."""

    def computation(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception:  # whatever it is, the changes are lost
            warn(
                f"tj: {name} raises, and what the compiled part of it has changed in Python "
                "objects before is lost: it cannot be run again"
            )
            raise

    return computation


def _writes(trace: Trace) -> bool:
    """Test if a program writes what it is given."""
    roots = alias_facts(trace).roots
    given = {roots[p.name] for p in trace.inputs}
    written = (call.flat_args[i] for call in trace.calls for i in call.effects.written)
    return any(roots[p.name] in given for p in written)


def _is_seen(call: BoundSymbol) -> bool:
    """Test for a call that others notice: a collective, or an extension's with side effects."""
    kept = [what for what in call.effects.ordered if not what.startswith("random")]
    name = call.symbol.qualname
    plain = name.startswith(_PLAIN) and not name.startswith("torch.ops.")
    return any(what != "side_effect" or not plain for what in kept)


_PLAIN = ("aten.", "operator.", "prims.", "tj_torch.", "torch.")
"""Beginnings of names of operators whose side effects are errors alone."""
