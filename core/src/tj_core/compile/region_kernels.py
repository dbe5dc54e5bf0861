"""Kernels of regions: the executor's compiled function, or the operations one by one.

Compiled functions are not trusted: the first run in each program is checked against the trace, with
the actual inputs. If the function raises or returns other metadata, the region runs without the
executor from then on, in all programs, with one warning. A write to an input, or to a result that
is in use, is an error, since the program cannot go on with overwritten values. Functions that an
executor compiles later, for other sizes, are checked in the same way; if one fails, the region runs
without the executor only for these sizes.

A new function runs twice, so that one which returns its results in the same memory each time is
found before it overwrites values in use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.analysis.liveness import value_names
from tj_core.analysis.results import Run, differences, given_values, in_memory, unequal
from tj_core.compile.checked_runs import (
    DRAWN,
    Alive,
    copied,
    drawn,
    draws_itself,
    may_repeat,
    note_alive,
    other,
    rebind,
)
from tj_core.contract.decline import LEAVE_OUT
from tj_core.errors import PluginError, mark_written
from tj_core.ir.symbol import Symbol
from tj_core.ir.trace import BoundSymbol

if TYPE_CHECKING:
    from weakref import ReferenceType

    from tj_core.contract.fusion import Boxed, Fused, FusionRegion
    from tj_core.ir.proxy import Proxy
    from tj_core.ir.runtime import RuntimeValues

__all__ = ["EveryRegionRun", "FirstRegionRun", "RegionKernel"]


@dataclass
class RegionKernel:
    """The kernel of ``region`` of ``executor``, called ``owner`` in messages.

    ``without`` makes an equivalent function that does not use the executor. ``warn`` is called on
    failure, with the reason, and with the sizes if only these fail. ``failure`` is the reason of a
    failure, else None. ``confirmed``: a run has agreed with the trace. ``places`` are the programs
    that call ``function`` directly, each with the name of its global. ``detached``: see `Fusion`.
    ``waiting``: the kernel is compiled behind the program, which does not call it yet.
    """

    region: FusionRegion
    executor: str
    owner: str
    without: Callable[[FusionRegion], Boxed]
    warn: Callable[[RegionKernel, Exception | str, Mapping[str, int]], None]
    fused: Fused | None = None
    failure: str | None = None
    function: Boxed = field(init=False)
    detached: bool = True
    confirmed: bool = False
    kept: bool = False
    waiting: bool = False
    places: list[tuple[ReferenceType[Any], str]] = field(default_factory=list)

    def use(self, fused: Fused, kept: bool = False) -> None:
        """Run the region by ``fused``; ``kept``: restored from another process."""
        self.fused, self.kept = fused, kept
        self.function = fused.function if fused.boxed else _boxed(fused.function)
        self.waiting = False

    def fail(self, reason: Exception | str, without: Boxed | None = None) -> None:
        """Run the region without the executor from now on, by ``without`` if given.

        :raises Exception: from ``warn``, as in strict mode.
        """
        self.leave(str(reason) or type(reason).__name__, without)
        self.warn(self, reason, {})

    def leave(self, reason: str, without: Boxed | None = None) -> None:
        """Like `fail`, but without a warning: the executor has declined the region."""
        self.failure = reason
        self.function = without or self.without(self.region)
        self.confirmed = True
        self.waiting = False
        for program, name in self.places:
            rebind(program, name, self.function)

    @property
    def stand_in(self) -> RegionKernel:
        """A kernel of the same region without the executor, for a program that runs meanwhile."""
        made = RegionKernel(self.region, self.executor, self.owner, self.without, self.warn)
        made.leave("it is compiled behind the program")
        return made

    def place(self, program: ReferenceType[Any] | None, name: str) -> None:
        """Bind the global ``name`` of ``program`` to the function, and note the place."""
        rebind(program, name, self.function)
        self.places = [place for place in self.places if place[0]() is not None]
        if program is not None:
            self.places.append((program, name))

    @property
    def strides(self) -> Mapping[int, tuple[int, ...]]:
        """The strides that the executor has chosen for outputs, by index."""
        return {} if self.fused is None or self.failure is not None else self.fused.strides

    def outputs(self, call: BoundSymbol) -> tuple[Proxy, ...]:
        """The outputs of ``call``, a call of the region, with the executor's choice of strides."""
        chosen = self.strides
        return tuple(
            p.replace(strides=chosen[i]) if i in chosen else p for i, p in enumerate(call.flat_outs)
        )

    @property
    def call(self) -> BoundSymbol:
        """A call of the region with its formal arguments."""
        symbol, region = Symbol(self.executor, self.region.name), self.region
        effects = region.effects
        return BoundSymbol(
            symbol, region.inputs, outputs=region.outputs, body=region.body, effects=effects
        )

    def first_run(self, make: Callable[[], Boxed], box: list[Any]) -> Sequence[Any] | None:
        """See `FusionRegion.first_run`.

        :raises PluginError: if an input was written.
        :raises Exception: an error of the region's operations for these inputs.
        """
        if not self.confirmed:  # `checked`, which is running, checks the results
            return make()(box)
        inputs, call = list(box), self.call
        box.clear()
        runtime = self.region.language.runtime
        run = Run(given_values(call, tuple(inputs), {}), runtime, call.effects)
        result, wrong = self.tried(make, inputs, run, call, new=True)
        if wrong is not None:
            if isinstance(wrong, Exception):
                # Where the operations raise, too, the program is wrong, and not the executor.
                self.without(self.region)(list(inputs))
            box.extend(inputs)
            self.warn(self, wrong, run.sizes)
            return None
        return result

    def tried(
        self,
        make: Callable[[], Boxed],
        inputs: list[Any],
        run: Run,
        call: BoundSymbol,
        *,
        new: bool,
    ) -> tuple[Sequence[Any], Exception | str | None]:
        """The result of the function that ``make`` makes, and the problem with it, or None.

        A ``new`` function runs twice. One that may write to inputs runs on copies of these first,
        since its writes cannot be undone.

        :raises PluginError: if an input, or an earlier result, was written.
        :raises Exception: an error of a run that may have written inputs, after one on copies.
        """
        overwritten = {*self.region.overwritten.values()}
        if not overwritten:
            return self.ran(make, inputs, run, call, new=new)
        runtime = tuple(run.runtime)
        copies = [copied(x, runtime) if i in overwritten else x for i, x in enumerate(inputs)]
        trial = Run(given_values(call, tuple(copies), {}), runtime, call.effects, run.earlier)
        made: list[Boxed] = []

        def kept() -> Boxed:
            made.append(make())
            return made[0]

        result, wrong = self.ran(kept, copies, trial, call, new=new)
        if wrong is not None:
            return (), wrong
        try:
            result = made[0](list(inputs))
        except Exception as error:
            mark_written(error)
            raise
        for lost in run.lost(call.outputs, result):
            raise self.error(lost)
        return result, None

    def ran(
        self,
        make: Callable[[], Boxed],
        inputs: list[Any],
        run: Run,
        call: BoundSymbol,
        *,
        new: bool,
    ) -> tuple[Sequence[Any], Exception | str | None]:
        """The result of `tried` for inputs that may be written."""
        result: Sequence[Any] = ()
        wrong: Exception | str | None
        try:
            function = make()
            # A list of its own for each run: a function empties the one that it gets.
            result = function(list(inputs))
            wrong = next(run.wrong(run.sized(self.outputs(call)), result), None)
            if new and wrong is None:
                wrong = next(run.reused(call.outputs, result, function(list(inputs))), None)
        except Exception as error:
            wrong = error
        for lost in run.lost(call.outputs, result):
            raise self.error(lost)
        return result, wrong

    def wrong_inputs(
        self, inputs: list[Any], runtime: tuple[RuntimeValues, ...]
    ) -> Exception | str | None:
        """The problem with inputs that differ from what the function was compiled for, or None.

        It would read other memory, without an error: results of calls may be of another data type
        than the trace declares, and lack the strides of the executor's choice.
        """
        found = next(differences(self.region.actual_inputs, inputs, runtime), None)
        return None if found is None else f"its input {found.removeprefix('result ')}"

    def checked(
        self,
        call: BoundSymbol,
        box: list[Any],
        runtime: tuple[RuntimeValues, ...],
        alive: Alive,
        held: Collection[Hashable] = (),
    ) -> Sequence[Any]:
        """The region's result for the inputs in ``box``, checked against ``call``.

        ``held`` is memory in use beside ``alive``. An error that the operations raise as well is
        raised, and is no failure of the executor.

        :raises PluginError: if an input, or an earlier result, was written.
        :raises Exception: an error of the region's operations for these inputs.
        """
        inputs = list(box)
        box.clear()
        earlier = {*alive, *held}
        run = Run(given_values(call, tuple(inputs), {}), runtime, call.effects, earlier)
        result: Sequence[Any] = ()
        wrong = self.wrong_inputs(inputs, runtime)
        if wrong is None:
            new = not self.confirmed
            result, wrong = self.tried(lambda: self.function, inputs, run, call, new=new)
        if wrong is not None:
            without = self.without(self.region)
            result = without(inputs)
            self.fail(wrong, without)
            return result
        self.confirmed = True
        note_alive(alive, call.outputs, result, runtime)
        return result

    def error(self, problem: str) -> PluginError:
        """An error that names the executor, the region and its ``problem``."""
        return PluginError(
            f"{self.owner} ran region {self.region.key}, and {problem}",
            source=self.region.source,
            hint=LEAVE_OUT,
        )


class FirstRegionRun:
    """A placeholder for ``kernel``, the global ``name`` of one program, until ``call`` has run.

    ``alive`` are results of the program's kernels that are still in use, by their memory.
    """

    __slots__ = ("alive", "call", "kernel", "name", "program", "runtime")

    def __init__(
        self,
        kernel: RegionKernel,
        call: BoundSymbol,
        runtime: tuple[RuntimeValues, ...],
        name: str,
        alive: Alive,
    ) -> None:
        self.kernel = kernel
        self.call = call
        self.runtime = runtime
        self.name = name
        self.alive = alive
        self.program: ReferenceType[Any] | None = None

    def __call__(self, box: list[Any]) -> Sequence[Any]:
        """Run the region for the inputs in ``box``, with checks.

        :raises PluginError: if an input, or an earlier result, was written.
        """
        kernel = self.kernel
        if kernel.failure is not None:
            result = kernel.function(box)
        else:
            result = kernel.checked(self.call, box, self.runtime, self.alive)
        kernel.place(self.program, self.name)
        return result


class EveryRegionRun(FirstRegionRun):
    """A permanent placeholder for ``kernel``: each run is repeated without the executor, on copies.

    Results are held until the next run, so that a kernel that uses their memory again is found.
    """

    __slots__ = ("last", "repeated", "steps", "without")

    def __init__(self, *first: Any) -> None:
        super().__init__(*first)
        self.without = self.kernel.without(self.kernel.region)
        self.steps = _longest_chain(self.kernel.region.body.calls)
        self.last: dict[Hashable, Any] = {}
        self.repeated = not may_repeat(self.call)

    def __call__(self, box: list[Any]) -> Sequence[Any]:
        """Run the region for the inputs in ``box``, and compare its results.

        The first run is repeated with other values.

        :raises PluginError: if values differ, an input was written, or random numbers were drawn.
        """
        copies = [copied(value, self.runtime) for value in box]
        others = [other(value, self.runtime) for value in box] if not self.repeated else []
        before = drawn(self.runtime)
        result = self.kernel.checked(self.call, box, self.runtime, self.alive, self.last)
        if drawn(self.runtime) != before and not self.call.effects.ordered:
            values = [copied(value, self.runtime) for value in copies]
            if draws_itself(lambda: self.kernel.function(values), self.runtime):
                raise self.kernel.error(DRAWN)
        if not self.repeated:
            self.repeated = True
            self.with_others(others)
        self.last = dict(in_memory(self.call.outputs, result, self.runtime))
        expected = self.without(copies)
        for problem in unequal(expected, result, self.call.outputs, self.runtime, self.steps):
            raise self.kernel.error(f"{problem}, as its operations compute")
        return result

    def with_others(self, inputs: list[Any]) -> None:
        """Compare a run for ``inputs``, if the operations take them.

        :raises PluginError: if values differ.
        """
        try:
            expected = self.without([copied(value, self.runtime) for value in inputs])
        except Exception:  # an operation has no result for such values
            return
        result = self.kernel.function(inputs)
        for problem in unequal(expected, result, self.call.outputs, self.runtime, self.steps):
            raise self.kernel.error(f"{problem}, in a second run with other values")


def _longest_chain(calls: Iterable[BoundSymbol]) -> int:
    """The length of the longest chain of calls, each of which reads a result of the one before."""
    depth: dict[str, int] = {}
    for call in calls:
        before = max((depth.get(name, 0) for name in value_names(call.flat_args)), default=0)
        depth.update(dict.fromkeys(value_names(call.outputs), before + 1))
    return max(depth.values(), default=1)


def _boxed(function: Callable[..., Sequence[Any]]) -> Boxed:
    return lambda box: function(*box)
