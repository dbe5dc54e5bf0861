"""What runs a region: the executor's compiled function, or its operations one by one.

What an executor compiled is not believed: its first run in each program is held against the trace,
with the inputs at hand. Where it raises or returns something else, the region runs without the
executor from then on, wherever it stands, and one warning says so. Where it wrote to an input, or
to a result that is in use, that is an error: the program cannot go on with what it has. What an
executor compiles later, for other sizes, is held against the trace in the same way; if that fails,
the region runs without the executor for such sizes alone.

A function that has never run runs twice: one that returns its results in the same memory each time
is found then, and not when it has overwritten what somebody still reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType

from tj_core.analysis.liveness import value_names
from tj_core.analysis.results import Run, differences, given_values, in_memory, unequal
from tj_core.compile.checked_runs import Alive, copied, note_alive, rebind
from tj_core.contract.fusion import Boxed, Fused, FusionRegion
from tj_core.errors import PluginError
from tj_core.ir.proxy import Proxy
from tj_core.ir.runtime import RuntimeValues
from tj_core.ir.symbol import Symbol
from tj_core.ir.trace import BoundSymbol

__all__ = ["EveryRegionRun", "FirstRegionRun", "RegionKernel"]


@dataclass
class RegionKernel:
    """What runs ``region`` of ``executor``, which messages call ``owner``.

    ``without`` makes a function that does the same without the executor; ``warn`` gets the
    reason, and the sizes if it fails for them alone. ``failure`` is the reason, once there is one.
    ``confirmed``: it has run, as the trace says. ``places`` are the programs that call ``function``
    directly, each with the name that it has there. ``detached`` is as of `Fusion`.
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
    places: list[tuple[ReferenceType[Any], str]] = field(default_factory=list)

    def use(self, fused: Fused, kept: bool = False) -> None:
        """Run the region as ``fused``, which is ``kept`` of another process."""
        self.fused, self.kept = fused, kept
        self.function = fused.function if fused.boxed else _boxed(fused.function)

    def fail(self, reason: Exception | str, without: Boxed | None = None) -> None:
        """Run the region without the executor from now on, by ``without`` if that is made already.

        :raises Exception: what ``warn`` raises, in strict mode.
        """
        self.failure = str(reason) or type(reason).__name__
        self.function = without or self.without(self.region)
        self.confirmed = True
        for program, name in self.places:
            rebind(program, name, self.function)
        self.warn(self, reason, {})

    def place(self, program: ReferenceType[Any] | None, name: str) -> None:
        """Let ``program`` call the function directly, under ``name``."""
        rebind(program, name, self.function)
        self.places = [place for place in self.places if place[0]() is not None]
        if program is not None:
            self.places.append((program, name))

    @property
    def strides(self) -> Mapping[int, tuple[int, ...]]:
        """The strides that the executor has chosen for outputs, by index."""
        return {} if self.fused is None or self.failure is not None else self.fused.strides

    def outputs(self, call: BoundSymbol) -> tuple[Proxy, ...]:
        """What ``call``, one of the region, returns, with the strides that the executor chose."""
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
        :raises Exception: what the region's operations raise for these inputs.
        """
        if not self.confirmed:  # `checked` looks at what comes of it
            return make()(box)
        inputs, call = list(box), self.call
        box.clear()
        runtime = self.region.language.runtime
        run = Run(given_values(call, tuple(inputs), {}), runtime, call.effects)
        result, wrong = self.tried(make, inputs, run, call, new=True)
        if wrong is not None:
            if isinstance(wrong, Exception):
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
        """What the function returns that ``make`` makes, and what is wrong with that.

        A ``new`` one runs twice.

        :raises PluginError: if an input was written, or an earlier result.
        """
        result: Sequence[Any] = ()
        wrong: Exception | str | None
        try:
            function = make()
            result = function(list(inputs))
            wrong = next(run.wrong(run.sized(self.outputs(call)), result), None)
            if new and wrong is None:
                wrong = next(run.reused(call.outputs, result, function(list(inputs))), None)
        except Exception as error:
            wrong = error
        for lost in run.lost(call.outputs, result):
            raise self.error(lost)
        return result, wrong

    def misplaced(
        self, inputs: list[Any], runtime: tuple[RuntimeValues, ...]
    ) -> Exception | str | None:
        """What is wrong with inputs that should have strides of the executor's choice."""
        if not self.region.strides:
            return None
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
        """What the region returns for the inputs in ``box``, held against ``call``.

        ``held`` is memory in use beside ``alive``. What raises without the executor, too, is no
        fault of it.

        :raises PluginError: if it wrote to an input.
        :raises Exception: what the region's operations raise for these inputs.
        """
        inputs = list(box)
        box.clear()
        earlier = {*alive, *held}
        run = Run(given_values(call, tuple(inputs), {}), runtime, call.effects, earlier)
        result: Sequence[Any] = ()
        wrong = self.misplaced(inputs, runtime)
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
        """What the region did wrong, as an error that names the executor."""
        return PluginError(
            f"{self.owner} ran region {self.region.key}, and {problem}",
            source=self.region.source,
            hint="leave the executor out with tj.jit(..., executors=[...])",
        )


class FirstRegionRun:
    """Stands for ``kernel`` in one program until ``call`` has run there once, under ``name``.

    ``alive`` is what kernels of the program have returned and is still in use, by its memory.
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
        """Run the region for the inputs in ``box``.

        :raises PluginError: if it wrote to one.
        """
        kernel = self.kernel
        if kernel.failure is not None:
            result = kernel.function(box)
        else:
            result = kernel.checked(self.call, box, self.runtime, self.alive)
        kernel.place(self.program, self.name)
        return result


class EveryRegionRun(FirstRegionRun):
    """Stands for ``kernel`` for good: each run is repeated without the executor, on copies.

    What it returned is held until the next run, so that memory which is used again is found.
    """

    __slots__ = ("last", "steps", "without")

    def __init__(self, *first: Any) -> None:
        super().__init__(*first)
        self.without = self.kernel.without(self.kernel.region)
        self.steps = _longest_chain(self.kernel.region.body.calls)
        self.last: dict[Hashable, Any] = {}

    def __call__(self, box: list[Any]) -> Sequence[Any]:
        """Run the region for the inputs in ``box``, and compare what it returns.

        :raises PluginError: if that has other values, or an input was written.
        """
        copies = [copied(value, self.runtime) for value in box]
        result = self.kernel.checked(self.call, box, self.runtime, self.alive, self.last)
        self.last = dict(in_memory(self.call.outputs, result, self.runtime))
        expected = self.without(copies)
        for problem in unequal(expected, result, self.call.outputs, self.runtime, self.steps):
            raise self.kernel.error(f"{problem}, as its operations compute")
        return result


def _longest_chain(calls: Iterable[BoundSymbol]) -> int:
    """The most calls that depend on each other, one on the next."""
    depth: dict[str, int] = {}
    for call in calls:
        before = max((depth.get(name, 0) for name in value_names(call.flat_args)), default=0)
        depth.update(dict.fromkeys(value_names(call.outputs), before + 1))
    return max(depth.values(), default=1)


def _boxed(function: Callable[..., Sequence[Any]]) -> Boxed:
    return lambda box: function(*box)
