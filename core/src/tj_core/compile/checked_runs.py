"""Checked runs of claimed calls: the first run of each kernel, or every run, against the trace.

A kernel that deviates from the trace is found when its program first runs; after that run it is
called directly. To verify values, the call's body repeats every run on copies.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.analysis.results import Run, given_values, in_memory, unequal
from tj_core.contract.decline import LEAVE_OUT
from tj_core.contract.executors import state_keepers
from tj_core.errors import PluginError
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.ir.tree import map_tree

if TYPE_CHECKING:
    from weakref import ReferenceType

    from tj_core.compile.pair_checks import PairCheck
    from tj_core.ir.runtime import RuntimeValues

__all__ = [
    "Alive",
    "Checks",
    "EveryRun",
    "FirstRun",
    "Reference",
    "copied",
    "drawn",
    "draws_itself",
    "may_repeat",
    "note_alive",
    "other",
    "rebind",
]

Alive = MutableMapping[Hashable, Any]
"""Values in use, by their memory."""

Reference = Callable[[BoundSymbol, Trace], "Callable[..., Any] | None"]
"""A function from a call and the trace around it to a function that runs the call's body.

That function takes the call's distinct arguments. None for a call without a body.
"""


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of claimed calls against the trace.

    ``owners`` maps executors' names to their descriptions in messages. With ``reference``, values
    are compared in every run; ``pair`` makes the check of the forward of a pair.
    """

    owners: Mapping[str, str] = field(default_factory=dict)
    reference: Reference | None = None
    pair: Callable[[BoundSymbol, Trace], PairCheck | None] = lambda call, trace: None

    def owner(self, call: BoundSymbol) -> str:
        """The executor of ``call`` in words."""
        return self.owners.get(call.executor or "", f"executor {call.executor!r}")


class FirstRun:
    """A placeholder for the kernel of ``call``, under the global ``name``, until its first run.

    ``alive`` has the results of the program's kernels that are still in use, by their memory. A
    kernel with state may return a value that its state keeps, more than once: ``own`` is the memory
    of its results so far. ``program`` is the function in whose globals the placeholder stands; a
    weak reference, to avoid a reference cycle.
    """

    __slots__ = ("alive", "call", "keeps", "kernel", "name", "own", "owner", "program", "runtime")

    def __init__(
        self,
        kernel: Callable[..., Any],
        call: BoundSymbol,
        runtime: tuple[RuntimeValues, ...],
        owner: str,
        name: str,
        alive: Alive,
    ) -> None:
        self.kernel = kernel
        self.call = call
        self.runtime = runtime
        self.owner = owner
        self.name = name
        self.alive = alive
        self.keeps = bool(state_keepers(call))
        self.own: set[Hashable] = set()
        self.program: ReferenceType[Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel, check the run against the trace, and put the kernel in this one's place.

        :raises PluginError: if the run deviates from the trace.
        """
        result = self.checked(args, kwargs)
        rebind(self.program, self.name, self.kernel)
        return result

    def checked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], held: Collection[Hashable] = ()
    ) -> Any:
        """The kernel's result, checked against the trace; ``held`` is further memory in use."""
        call = self.call
        given = given_values(call, args, kwargs)
        run = Run(given, self.runtime, call.effects, {*self.alive, *held} - self.own)
        result = self.kernel(*args, **kwargs)
        for problem in run.problems(call.outputs, result):
            raise self.error(problem)
        if self.keeps:
            # Before `alive`: a program may run for the first time on two threads at once.
            self.own = {memory for memory, _ in in_memory(call.outputs, result, self.runtime)}
        note_alive(self.alive, call.outputs, result, self.runtime)
        return result

    def error(self, problem: str) -> PluginError:
        """An error that names the executor, the call and the kernel's ``problem``."""
        call = self.call
        return PluginError(
            f"{self.owner} ran {call.symbol.path} for {call.label!r}, and {problem}",
            source=call.source,
            hint=LEAVE_OUT,
        )


class EveryRun(FirstRun):
    """A permanent placeholder for the kernel of ``call``: ``reference`` repeats each run on copies.

    Results are held until the next run, so that a kernel that uses their memory again is found.
    The forward of a pair is also compared as ``pair`` says. The first run is repeated with other
    values.
    """

    __slots__ = ("last", "pair", "reference", "repeated")

    def __init__(
        self, *first: Any, reference: Callable[..., Any], pair: PairCheck | None = None
    ) -> None:
        super().__init__(*first)
        self.reference = reference
        self.pair = pair
        self.last: dict[Hashable, Any] = {}
        self.repeated = not may_repeat(self.call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel, and compare its results and its writes with those of the body.

        :raises PluginError: if the two differ, or random numbers were drawn.
        """
        call = self.call
        given = {p.name: (p, v) for p, v in given_values(call, args, kwargs)}
        copies = {name: copied(value, self.runtime) for name, (_, value) in given.items()}
        again = self.replaced(args, kwargs, given, copies) if self.pair is not None else None
        before = drawn(self.runtime)
        result = self.checked(args, kwargs, self.last)
        if drawn(self.runtime) != before:
            values = {name: copied(value, self.runtime) for name, value in copies.items()}
            run = self.replaced(args, kwargs, given, values)
            # Another run would change a state.
            repeat = None if self.keeps else lambda: self.kernel(*run[0], **run[1])
            if draws_itself(repeat, self.runtime):
                raise self.error(DRAWN)
        if self.pair is not None and again is not None:
            for problem in self.pair.problems(*again, result):
                raise self.error(problem)
        if not self.repeated:
            self.repeated = True
            self.with_others(args, kwargs, given)
        self.last = dict(in_memory(call.outputs, result, self.runtime))
        expected = self.reference(*copies.values())
        for problem in unequal(expected, result, call.outputs, self.runtime):
            raise self.error(f"{problem}, as its body computes")
        for i in call.effects.mutates:
            p = call.flat_args[i]
            for problem in unequal(copies[p.name], given[p.name][1], p, self.runtime):
                raise self.error(f"after it argument {p.name!r}: {problem}")
        return result

    def replaced(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Mapping[str, tuple[Any, Any]],
        values: Mapping[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``args`` and ``kwargs`` with the values ``given`` replaced by ``values``, by name."""
        # By identity: values such as tensors compare by elements.
        swapped = {id(value): values[name] for name, (_, value) in given.items()}
        return map_tree(lambda v: swapped.get(id(v), v), (args, kwargs))  # type: ignore[no-any-return]

    def with_others(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], given: Mapping[str, tuple[Any, Any]]
    ) -> None:
        """Compare a run with other values in the arguments, if the operation takes these.

        :raises PluginError: if the kernel does not compute what the body does.
        """
        values = {name: other(value, self.runtime) for name, (_, value) in given.items()}
        copies = [copied(value, self.runtime) for value in values.values()]
        try:
            expected = self.reference(*copies)
        except Exception:  # the operation has no result for such values
            return
        again = self.replaced(args, kwargs, given, values)
        run = Run(given_values(self.call, *again), self.runtime, self.call.effects)
        result = self.kernel(*again[0], **again[1])
        found = itertools.chain(
            run.problems(self.call.outputs, result),
            unequal(expected, result, self.call.outputs, self.runtime),
        )
        for problem in found:
            raise self.error(f"{problem}, in a second run with other values, as its body computes")


DRAWN = "it drew random numbers, which the trace does not say"


def may_repeat(call: BoundSymbol) -> bool:
    """Decide if ``call`` may run once more, with other values, without effect and with a meaning.

    The values that a forward saves for a backward are related, and other values need not be.
    """
    saved = "BACKWARD" in call.tags or "backward" in call.symbol.path
    return call.effects.removable and not call.subprograms and not saved


def drawn(runtime: tuple[RuntimeValues, ...]) -> list[object]:
    """Tokens of the state of all generators of random numbers."""
    return [dialect.generators() for dialect in runtime if dialect.generators is not None]


def draws_itself(repeat: Callable[[], Any] | None, runtime: tuple[RuntimeValues, ...]) -> bool:
    """Decide if a kernel drew the random numbers that were drawn during its run.

    Where there are other threads, these may have drawn: ``repeat``, which runs the kernel once
    more, is observed. Without it the kernel is believed.
    """
    if threading.active_count() == 1:
        return True
    known = [dialect.draws for dialect in runtime if dialect.draws is not None]
    return repeat is not None and any(draws(repeat) for draws in known)


def other(value: Any, runtime: tuple[RuntimeValues, ...]) -> Any:
    """A value like ``value`` with other elements, if its dialect makes one, else a copy."""
    dialect = next((d for d in runtime if d.observe(value) is not None), None)
    made = dialect.other(value) if dialect is not None and dialect.other is not None else None
    return copied(value, runtime) if made is None else made


def rebind(program: ReferenceType[Any] | None, name: str, function: Callable[..., Any]) -> None:
    """Bind the global ``name`` of ``program``, if it still exists, to ``function``."""
    found = program() if program is not None else None
    if found is not None:
        found.__globals__[name] = function


def note_alive(alive: Alive, outputs: Any, result: Any, runtime: tuple[RuntimeValues, ...]) -> None:
    """Add the values in ``result`` to ``alive``, by their memory."""
    for memory, value in in_memory(outputs, result, runtime):
        with contextlib.suppress(TypeError):  # not all values have weak references
            alive[memory] = value


def copied(value: Any, runtime: tuple[RuntimeValues, ...]) -> Any:
    """A copy of ``value`` in memory of its own; the value itself if no dialect knows it."""
    dialect = next((d for d in runtime if d.observe(value) is not None), None)
    return value if dialect is None else dialect.copy(value)
