"""Runs of claimed calls that are checked against the trace: the first of each, or every one.

A kernel that deviates from the trace is found when its program first runs; after that run it is
called directly. To verify values, every run is repeated by the call's body on copies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.analysis.results import Run, given_values, in_memory, unequal
from tj_core.contract.decline import LEAVE_OUT
from tj_core.errors import PluginError
from tj_core.ir.trace import BoundSymbol, Trace

if TYPE_CHECKING:
    from weakref import ReferenceType

    from tj_core.ir.runtime import RuntimeValues

__all__ = [
    "Alive",
    "Checks",
    "EveryRun",
    "FirstRun",
    "Reference",
    "copied",
    "note_alive",
    "rebind",
]

Alive = MutableMapping[Hashable, Any]
"""Values in use, by their memory."""

Reference = Callable[[BoundSymbol, Trace], "Callable[..., Any] | None"]
"""A function that makes a function of a call's body, of the call's distinct arguments.

Its arguments are a call and the trace around it; None for a call without a body.
"""


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of claimed calls against the trace.

    ``owners`` maps executors' names to their descriptions in messages. With ``reference``, values
    are compared in every run.
    """

    owners: Mapping[str, str] = field(default_factory=dict)
    reference: Reference | None = None

    def owner(self, call: BoundSymbol) -> str:
        """The executor of ``call`` in words."""
        return self.owners.get(call.executor or "", f"executor {call.executor!r}")


class FirstRun:
    """A placeholder for the kernel of ``call``, under the global ``name``, until its first run.

    ``alive`` are results of the program's kernels that are still in use, by their memory.
    ``program`` is the function in whose globals the placeholder stands; a weak reference, to avoid
    a reference cycle.
    """

    __slots__ = ("alive", "call", "kernel", "name", "owner", "program", "runtime")

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
        run = Run(given, self.runtime, call.effects, {*self.alive, *held})
        result = self.kernel(*args, **kwargs)
        for problem in run.problems(call.outputs, result):
            raise self.error(problem)
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
    """

    __slots__ = ("last", "reference")

    def __init__(self, *first: Any, reference: Callable[..., Any]) -> None:
        super().__init__(*first)
        self.reference = reference
        self.last: dict[Hashable, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel, and compare its results and its writes with those of the body.

        :raises PluginError: if the two differ.
        """
        call = self.call
        given = {p.name: (p, v) for p, v in given_values(call, args, kwargs)}
        copies = {name: copied(value, self.runtime) for name, (_, value) in given.items()}
        result = self.checked(args, kwargs, self.last)
        self.last = dict(in_memory(call.outputs, result, self.runtime))
        expected = self.reference(*copies.values())
        for problem in unequal(expected, result, call.outputs, self.runtime):
            raise self.error(f"{problem}, as its body computes")
        for i in call.effects.mutates:
            p = call.flat_args[i]
            for problem in unequal(copies[p.name], given[p.name][1], p, self.runtime):
                raise self.error(f"after it argument {p.name!r}: {problem}")
        return result


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
