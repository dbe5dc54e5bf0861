"""The run of the kit: each operation, data type, sample and layout through the probes."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from tj_core.testing.rehearsing import rehearsal

from tj_conformance.executor import probes
from tj_conformance.executor.calls import tensors
from tj_conformance.executor.comparison import Differs, Tolerance, tolerating
from tj_conformance.executor.finding import Finding
from tj_conformance.executor.layouts import LAYOUTS, laid_out
from tj_conformance.executor.operations import DTYPES, Operation
from tj_conformance.executor.program import program
from tj_conformance.executor.report import Cell, Report
from tj_conformance.executor.running import EagerRaises
from tj_conformance.executor.tolerances import declared
from tj_conformance.oracle.device import device
from tj_conformance.oracle.layouts import AS_SAMPLED
from tj_conformance.sampling import batches

if TYPE_CHECKING:
    from tj_conformance.executor.calls import Call
    from tj_conformance.executor.subject import Subject

__all__ = ["AMOUNTS", "Amount", "Kit"]

AS_GIVEN = "as given"

BATCH = 8
"""Operations whose regions are compiled together."""

COMPILING = ("calls", "sizes", "symbols", "writes", "raises")
"""Probes for which something is compiled that was not for `calls`."""


@dataclass(frozen=True, slots=True)
class Amount:
    """The size of a run: ``samples`` of each operation and data type (None: all).

    The first ``probed`` calls that the executor takes go through all probes. ``everywhere``: in
    every data type, and not only in the first that it takes. ``each``: in each kind of run;
    else probes that compile more programs run with gradients alone, if there are any.
    """

    samples: int | None
    probed: int | None
    everywhere: bool
    each: bool = True


AMOUNTS = {
    "fast": Amount(3, 1, False, each=False),
    "usual": Amount(12, 1, True),
    "full": Amount(None, None, True),
}


@dataclass
class Kit:
    """A run for one executor, in ``dtypes``.

    ``first`` ends it at the first finding; after ``seconds`` no new operation begins. While
    ``rehearsing``, regions run without the executor, so that there are no findings.
    """

    subject: Subject
    amount: Amount = AMOUNTS["usual"]
    bitwise: bool = False
    first: bool = False
    dtypes: tuple[str, ...] = DTYPES
    seconds: float = float("inf")
    rehearsing: bool = False
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self.report = Report(self.subject.name, self.subject.owner)

    def run(self, operations: Iterable[Operation]) -> Iterator[Cell]:
        """Run ``operations``; yield each cell when it is done."""
        end = time.monotonic() + self.seconds
        for batch in batches(operations, BATCH if self.together else 1):
            if time.monotonic() > end:
                self.report.left += tuple(operation.name for operation in batch)
                continue
            if self.together:
                self._rehearse(batch)
            for operation in batch:
                for cell in self._cells(operation):
                    self.report.cells.append(cell)
                    yield cell
                    if self.first and self.report.findings:
                        return
        if not self.report.left:
            self._untried()

    @property
    def together(self) -> bool:
        """True if the executor compiles the regions of several programs at once."""
        fusion = self.subject.executor.fusion
        return fusion is not None and fusion.together is not None

    def _rehearse(self, batch: Sequence[Operation]) -> None:
        """Have the regions of ``batch`` compiled together; what the kit sees counts for nothing."""
        silent = replace(self, first=False, rehearsing=True)
        with rehearsal(self.subject.session):
            for operation in batch:
                silent.report.cells += silent._cells(operation)

    def _cells(self, operation: Operation) -> Iterator[Cell]:
        """Run one operation in each data type."""
        torch.compiler.reset()
        known = False
        for number, dtype in enumerate(d for d in operation.dtypes if d in self.dtypes):
            if number > 0 and not known:
                break  # not asked for it in the first data type: it does not know it
            cell, asked = self.cell(operation, dtype)
            known = known or asked
            yield cell

    def cell(self, operation: Operation, dtype: str) -> tuple[Cell, bool]:
        """The cell of one operation and data type, and True if the executor knows any call."""
        deep = self.amount.everywhere or not any(
            c.takes for c in self.report.cells if c.operation == operation.name
        )
        table = declared(self.subject.session, operation)
        self.report.tolerances = tuple(dict.fromkeys((*self.report.tolerances, *table.reasons)))
        tolerance = Tolerance(table.values, self.bitwise)
        with tolerating(tolerance) as rounding, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work = _Cell(self, operation, Cell(operation.name, dtype), deep)
            work.run()
            work.cell.rounding = tuple(dict.fromkeys(rounding))
        return work.cell, work.known

    def _untried(self) -> None:
        tried = {name for cell in self.report.cells for name in cell.symbols}
        self.report.untried = tuple(
            key for key in self.subject.claimed() if not any(fnmatchcase(n, key) for n in tried)
        )


Key = tuple[str, str]


@dataclass
class _Cell:
    """The work for one cell; ``deep``: all probes run."""

    kit: Kit
    operation: Operation
    cell: Cell
    deep: bool
    known: bool = False
    found: set[Key] = field(default_factory=set)

    def run(self) -> None:
        probed, most = 0, self.kit.amount.probed
        calls = self.operation.calls(self.cell.dtype, self.kit.amount.samples)
        ranks = set[tuple[int, ...]]()
        for number, call in enumerate(calls):
            if number > 1 and not self.known and _ranks(call) in ranks:
                continue  # like one without any call that the executor has a claim for
            ranks.add(_ranks(call))
            one = _Sample(self, number, call)
            takes = one.look()
            if self.done:
                return
            self.known = self.known or one.asked
            if takes and self.deep and (most is None or probed < most):
                probed += 1
                one.probe()
            if self.done:
                return
        if self.known and not self.cell.takes and self.deep:
            probed += self.larger()
        if probed:
            self.errors()

    def larger(self) -> bool:
        """Try the first sample with more elements; True if the executor takes that."""
        call = next(self.operation.calls(self.cell.dtype, 1), None)
        if call is None:
            return False
        one = _Sample(self, 0, laid_out(call, "large"), layout="large")
        takes = one.look()
        if takes and not self.done:
            one.probe()
        return takes

    @property
    def done(self) -> bool:
        """True if the run ends at the first finding, which is there."""
        return self.kit.first and bool(self.cell.findings)

    def errors(self) -> None:
        """Hold the calls that must raise against eager.

        Not on a GPU, whose kernels note a bad index and end the process.
        """
        if device() != "cpu":
            return
        right = next(self.operation.calls(self.cell.dtype, 1), None)
        for number, wrong in enumerate(self.operation.wrong_calls()):
            tried = _Sample(self, number, wrong, f"wrong call {number}")
            calls = (wrong,) if right is None else (wrong, right)

            tried.held("errors", None, probes.errors, calls, AS_GIVEN)


@dataclass
class _Sample:
    """One sample in a cell; ``asked``: the executor knows a call in it."""

    of: _Cell
    number: int
    call: Call
    name: str = ""
    layout: str = AS_GIVEN
    asked: bool = False
    compiled: dict[str, tuple[Any, _Once]] = field(default_factory=dict)

    def made(self, kind: str) -> tuple[Any, _Once]:
        """The function for a kind of run, and what compiles it once for all probes."""
        if kind not in self.compiled:
            self.compiled[kind] = self.of.operation.function(), _Once(self.of.kit.subject.jit)
        return self.compiled[kind]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of runs that the sample has."""
        if not self.call.differentiable:
            return ("forward",)
        second = self.of.operation.differentiable(self.of.cell.dtype, second=True)
        return ("forward", "gradients", *(["second gradients"] if second else []))

    def look(self) -> bool:
        """Compare one call with eager, and one with gradients; True if the executor took any."""
        cell, kit, taken = self.of.cell, self.of.kit, False
        cell.samples += 1
        reasons: tuple[str, ...] = ()
        for kind in self.kinds[:2]:
            jitted = self.apply("calls", kind, self.call, self.layout, *self.made(kind))
            if jitted is None:
                continue
            verdict = kit.subject.verdict(jitted)
            self.asked = self.asked or verdict.knows
            cell.symbols.update(verdict.symbols)
            reasons = reasons or verdict.declined
            taken = taken or verdict.takes
            if verdict.takes and kind == "forward":
                cell.taken += 1
            elif verdict.takes:
                cell.gradients += 1
            if self.of.done or (not verdict.knows and self.number > 0 and kind == "forward"):
                break
        if not taken:
            cell.declined.update(reasons[:1])
        return taken

    def probe(self) -> None:
        """Run all probes, in each layout and kind of run."""
        for kind in self.kinds:
            f, jit = self.made(kind)
            for name in self.probes(kind):
                if ("calls", kind) in self.of.found:
                    break  # all else differs for the same reason
                if name != "calls" or kind == "second gradients":
                    self.apply(name, kind, self.call, self.layout, f, jit)
                if self.of.done:
                    return
            else:
                if kind == self.kinds[:2][-1] or (self.of.kit.amount.each and kind == "forward"):
                    self.layouts(kind)

    def probes(self, kind: str) -> Iterator[str]:
        """The names of the probes that run in a kind of run."""
        of = self.of.kit
        few = not of.amount.each and kind != self.kinds[:2][-1]
        left_out = set(COMPILING) - {"writes", "calls"} if few else set[str]()
        for name in probes.PROBES:
            if name not in left_out and (not of.rehearsing or name in COMPILING):
                yield name

    def layouts(self, kind: str) -> None:
        """Compare calls with eager in each layout that differs from the sample's."""
        if self.of.operation.name in AS_SAMPLED:
            return
        for name, change in LAYOUTS.items():
            try:
                changed = self.call.changed(change)
            except Exception:  # the sample has no such layout, as of tensors of several sizes
                continue
            if not _moved(changed, self.call):
                continue
            both = name if self.layout == AS_GIVEN else f"{self.layout} and {name}"
            self.apply("calls", kind, changed, both, self.of.operation.function())
            if self.of.done:
                return

    def apply(
        self, name: str, kind: str, call: Call, layout: str, f: Any, jit: _Once | None = None
    ) -> Any:
        """Run a probe for ``call``; return the jitted ``f``, None if eager raises.

        ``jit`` has what other probes of ``f`` compiled.
        """

        def probe(jit: Any, f: Any, call: Call) -> None:
            probes.PROBES[name](jit, f, call, kind)

        return self.held(name, kind, probe, (call,), layout, f, jit)

    def held(
        self,
        name: str,
        kind: str | None,
        probe: Callable[..., None],
        calls: tuple[Call, ...],
        layout: str,
        f: Any = None,
        jit: _Once | None = None,
    ) -> Any:
        """Run ``probe``; a problem that is there without the executor, too, is none of its own."""
        of, subject = self.of, self.of.kit.subject
        if (name, kind or "") in of.found:
            return None
        jit = jit or _Once(subject.jit)
        f = f or of.operation.function()
        try:
            of.cell.probed += 1
            probe(jit, f, *calls)
        except EagerRaises:
            return None
        except Exception as error:
            if of.kit.rehearsing:
                return jit.last
            of.found.add((name, kind or ""))
            problem = _text(error)
            if self.right_without(probe, calls):
                self.find(name, kind, self.smaller(probe, calls, layout), layout, problem)
            else:
                of.cell.others.append(f"{name}, {kind}: {problem}")
        return jit.last

    def right_without(self, probe: Callable[..., None], calls: tuple[Call, ...]) -> bool:
        """Check that there is no problem without the executor, nor in the same program where
        PyTorch runs its regions.
        """
        subject, operation = self.of.kit.subject, self.of.operation
        if not _holds(probe, subject.without, operation, calls):
            return False
        if subject.executor.fusion is None:
            return True
        with rehearsal(subject.session):
            # What does not compile has no results that differ: it is a problem of the executor's.
            return not isinstance(_problem(probe, subject.jit, operation, calls), Differs)

    def smaller(
        self, probe: Callable[..., None], calls: tuple[Call, ...], layout: str
    ) -> tuple[Call, ...]:
        """The same calls on few elements, if the problem is there, too."""
        subject, operation = self.of.kit.subject, self.of.operation
        if layout == self.layout:
            few = tuple(call.changed(_few) for call in calls)
        else:
            few = tuple(laid_out(self.call.changed(_few), layout) for _ in calls)
        fails = not _holds(probe, subject.jit, operation, few)
        right = fails and _holds(probe, subject.without, operation, few)
        return few if right else calls

    def find(
        self, name: str, kind: str | None, calls: tuple[Call, ...], layout: str, problem: str
    ) -> None:
        """Add a finding."""
        of, subject = self.of, self.of.kit.subject
        sample = self.name or f"sample {self.number}"
        tolerance = Tolerance(declared(subject.session, of.operation).values, of.kit.bitwise)
        place = of.cell.dtype, self.number, layout
        text = program(subject, of.operation, place, calls, name, kind, tolerance)
        facts = subject.owner, of.operation.name, of.cell.dtype, sample, layout, name
        of.cell.findings.append(Finding(*facts, kind or "forward", problem, text))


class _Once:
    """``jit`` that compiles a function once for each choice of options."""

    def __init__(self, jit: Callable[..., Any]) -> None:
        self.jit, self.made, self.last = jit, dict[Any, Any](), None

    def __call__(self, f: Any, **options: Any) -> Any:
        key = f, *options.items()
        if key not in self.made:
            self.made[key] = self.jit(f, **options)
        self.last = self.made[key]
        return self.last


def _holds(
    probe: Callable[..., None],
    jit: Callable[..., Any],
    operation: Operation,
    calls: tuple[Call, ...],
) -> bool:
    """Decide if the probe finds nothing with ``jit``."""
    return _problem(probe, jit, operation, calls) is None


def _problem(
    probe: Callable[..., None],
    jit: Callable[..., Any],
    operation: Operation,
    calls: tuple[Call, ...],
) -> Exception | None:
    """The problem that the probe finds with ``jit``, or None."""
    try:
        probe(_Once(jit), operation.function(), *calls)
    except EagerRaises:
        return None
    except Exception as error:
        return error
    return None


def _few(x: torch.Tensor) -> torch.Tensor:
    """A part of ``x``, at most three in each dimension, of short numbers."""
    if x.layout is torch.strided:
        for dim in range(x.dim()):
            x = x.narrow(dim, 0, min(3, x.shape[dim]))
    return (x * 4).round() / 4 if x.is_floating_point() else x.clone()


def _ranks(call: Call) -> tuple[int, ...]:
    """The ranks of the tensors of ``call``, which often decide of which operators it consists."""
    return tuple(x.dim() for x in tensors(call))


def _moved(changed: Call, call: Call) -> bool:
    pairs = itertools.zip_longest(*(_places(c) for c in (changed, call)))
    return any(a != b for a, b in pairs)


def _places(call: Call) -> list[Any]:
    return [
        (x.shape, x.stride(), x.storage_offset(), x.is_conj())
        for x in tensors(call)
        if x.layout is torch.strided
    ]


def _text(error: Exception) -> str:
    """The first line of ``error``, with its type unless the probe says it all."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    kind = type(error).__name__
    return line if kind in ("Differs", "PluginError") else f"{kind}: {line}"
