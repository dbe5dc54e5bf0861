"""Runs of claimed calls that are held against the trace: the first of each, or every one.

A kernel that does something else than the trace says is found when its program first runs; after
that it is called directly. To verify values, every run is repeated as the call's body on copies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType

from tj_core.analysis.results import Run, given_values, in_memory, unequal
from tj_core.errors import PluginError
from tj_core.ir.runtime import RuntimeValues
from tj_core.ir.trace import BoundSymbol, Trace

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
"""Values in use, by the memory they are in."""

Reference = Callable[[BoundSymbol, Trace], "Callable[..., Any] | None"]
"""The body of a call of a trace as a function of the call's arguments, each value once; None for a
call that has no body to be compared with."""


@dataclass(frozen=True, slots=True)
class Checks:
    """How claimed calls are held against the trace.

    ``owners`` are executors by name, as messages call them. With ``reference`` values are compared
    in every run.
    """

    owners: Mapping[str, str] = field(default_factory=dict)
    reference: Reference | None = None

    def owner(self, call: BoundSymbol) -> str:
        """Whose call it is."""
        return self.owners.get(call.executor or "", f"executor {call.executor!r}")


class FirstRun:
    """Stands for the kernel of ``call`` until that has run once, under ``name``.

    ``alive`` is what kernels of the program have returned and is still in use, by its memory.
    ``program`` is the function in whose globals this stands; a weak reference, so that the two are
    no cycle.
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
        """Run the kernel, and compare.

        :raises PluginError: if it does something else than the trace says.
        """
        result = self.checked(args, kwargs)
        rebind(self.program, self.name, self.kernel)
        return result

    def checked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], held: Collection[Hashable] = ()
    ) -> Any:
        """What the kernel returns, held against the trace; ``held`` is more memory in use."""
        call = self.call
        given = given_values(call, args, kwargs)
        run = Run(given, self.runtime, call.effects, {*self.alive, *held})
        result = self.kernel(*args, **kwargs)
        for problem in run.problems(call.outputs, result):
            raise self.error(problem)
        note_alive(self.alive, call.outputs, result, self.runtime)
        return result

    def error(self, problem: str) -> PluginError:
        """What the kernel did wrong, as an error that names it."""
        call = self.call
        return PluginError(
            f"{self.owner} ran {call.symbol.path} for {call.label!r}, and {problem}",
            source=call.source,
            hint="leave the executor out with tj.jit(..., executors=[...])",
        )


class EveryRun(FirstRun):
    """Stands for the kernel of ``call`` for good: each run is repeated by ``reference`` on copies.

    What it returned is held until the next run, so that memory which is used again is found.
    """

    __slots__ = ("last", "reference")

    def __init__(self, *first: Any, reference: Callable[..., Any]) -> None:
        super().__init__(*first)
        self.reference = reference
        self.last: dict[Hashable, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel, and compare what it returns and writes with what the body does.

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
    """Let ``program``, if it lives, call ``function`` under ``name``."""
    found = program() if program is not None else None
    if found is not None:
        found.__globals__[name] = function


def note_alive(alive: Alive, outputs: Any, result: Any, runtime: tuple[RuntimeValues, ...]) -> None:
    """Note in ``alive`` which memory the values in ``result`` are in."""
    for memory, value in in_memory(outputs, result, runtime):
        with contextlib.suppress(TypeError):  # not all values can be referred to weakly
            alive[memory] = value


def copied(value: Any, runtime: tuple[RuntimeValues, ...]) -> Any:
    """``value`` in memory of its own."""
    dialect = next((d for d in runtime if d.observe(value) is not None), None)
    return value if dialect is None else dialect.copy(value)
