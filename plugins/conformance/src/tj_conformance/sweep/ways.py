"""The sweep, and all ways to run a sample that it compares with eager."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tj_core as tj
import torch

from tj_conformance.databases import known
from tj_conformance.databases.graphs import ORIGINS, hold_graph
from tj_conformance.databases.known import Known, disagreements
from tj_conformance.databases.memo import Comparison, compiled, described
from tj_conformance.databases.op_db import full_name
from tj_conformance.gradients import known as gradients
from tj_conformance.gradients.gradients import declined, first_gradients
from tj_conformance.oracle.compare import call_differences, differences, seeded
from tj_conformance.oracle.device import device
from tj_conformance.oracle.result import Kind, Problem, Result
from tj_conformance.sweep.expansion import hold_expansion, hold_in_place
from tj_conformance.sweep.names import hold_names
from tj_conformance.sweep.sample import Sample, samples
from tj_conformance.sweep.symbols import hold_symbols

__all__ = ["GRADIENTS", "TORCH", "WAYS", "run_sweep", "session", "sweep_disagreements"]

Hold = Callable[[Sample, Result], None]
TORCH = ("torch",)
GRADIENTS = ("torch", "autograd")
PER_CALLABLE = 8
"""Number of samples for one jitted callable, so that no entry is dropped."""
MOST = 64
"""Number of samples of an operation that are compiled in each data type.

Further samples are compiled in one data type each, and those of float32 as FX graphs. Few
operations have more (`unique` has 528, `max_pool1d` 864), which would take most of the time of all.
"""

CHEAP: Mapping[str, Hold] = {
    "expansion": hold_expansion,
    "in place": hold_in_place,
    "names": hold_names,
    "symbols": hold_symbols,
}
"""Ways that compile no program."""


def _hold_graphs(origin: str, sample: Sample, result: Result) -> None:
    jit = functools.partial(tj.jit, session=session(TORCH), frontend="fx")
    hold_graph(sample.op, origin, sample.arguments(), jit, result, sample.where)


GRAPHS: Mapping[str, Hold] = {
    f"fx {origin}": functools.partial(_hold_graphs, origin) for origin in ORIGINS
}


@functools.cache
def session(plugins: tuple[str, ...], *, memo: bool = True) -> tj.Session:
    """One session for each list of plugins, so that what is remembered is used again."""
    return tj.Session(plugins, overrides={"memo": memo})


def program_of(op: Any) -> Callable[..., Any]:
    """A program that calls ``op``, another function each time."""

    def program(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    return program


@functools.cache
def executors() -> tuple[str, ...]:
    """Installed plugins with an executor of their own."""
    found = tj.Session().plugins.executors()
    return tuple(sorted({plugin for plugin, record in found if not record.fallback}))


@dataclass(frozen=True)
class Jitted:
    """One way to jit: plugins, with or without symbolic sizes."""

    plugins: tuple[str, ...]
    dynamic: bool | None = False
    exact: bool = True

    def hold(self, op: Any, chunk: list[Sample], result: Result) -> Any:
        """Run ``chunk`` through one jitted callable, which is returned."""

        torch.compiler.reset()  # PyTorch's hook gives up on code it has compiled often
        jitted = tj.jit(program_of(op), session=session(self.plugins), dynamic=self.dynamic)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in chunk:
                self._sample(jitted, sample, result)
        reasons = (f.reason for f in tj.stats(jitted).fallbacks)
        result.falls_back(f"{chunk[0].where} to {chunk[-1].where}", reasons)
        return jitted

    def _sample(self, jitted: Any, sample: Sample, result: Result) -> None:
        eager, mine, where = sample.eager, sample.arguments(), sample.where
        assert eager is not None
        compared = self.exact and sample.defined
        try:
            got = seeded(jitted, *mine)
            mine_too = first_gradients(got, mine) if eager.gradients is not None else []
        except Exception as error:
            result.raises(where, error)
            return
        found = call_differences(got, mine, eager.result, eager.arguments, values=sample.defined)
        found += differences(mine_too, eager.gradients or [], "gradients", values=sample.defined)
        result.differs(where, (d for d in found if compared or not d.rounding))
        if "autograd" in self.plugins:
            result.problems += [Problem(Kind.DECLINED, where, why) for why in declined(jitted)]


@functools.cache
def _ways_to_jit() -> dict[str, Jitted]:
    """Ways to jit by name: PyTorch's executor alone, traced gradients, and each other executor."""
    others = {f"executor {name}": Jitted((name, *GRADIENTS), exact=False) for name in executors()}
    return {
        "jit": Jitted(TORCH),
        "jit dynamic": Jitted(TORCH, dynamic=None),
        "autograd": Jitted(GRADIENTS),
        **others,
    }


WAYS = (*CHEAP, *GRAPHS, "memo", "jit", "jit dynamic", "autograd", "executor")
"""All ways; ``executor`` is every installed executor."""


def run_sweep(
    op: Any,
    dtype: torch.dtype = torch.float32,
    count: int | None = 2,
    ways: Collection[str] = WAYS,
) -> Iterator[tuple[str, Result]]:
    """Run ``count`` samples of ``op`` once in eager (None: all), and compare ``ways`` with that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(samples(op, dtype, count))
        compiled = found[:MOST] + [s for s in found[MOST:] if _is_compiled(s, dtype)]
        graphs = GRAPHS if dtype is torch.float32 else {}
        for name, hold in {**CHEAP, **graphs}.items():
            if name in ways:
                held = compiled if name in GRAPHS else found
                result = _result(op, held)
                for sample in _usable(held):
                    hold(sample, result)
                yield name, result
        for name, way in _ways_to_jit().items():
            if _kind(name) in ways:
                yield from _jitted(op, name, way, compiled, ways)


def _jitted(
    op: Any, name: str, way: Jitted, found: list[Sample], ways: Collection[str]
) -> Iterator[tuple[str, Result]]:
    """Run one way to jit; programs with symbols are also compared with and without the memo."""
    result, remembered = _result(op, found), _result(op, found)
    for chunk in _chunks(_usable(found)):
        jitted = way.hold(op, chunk, result)
        if "memo" in ways and way.dynamic is None:
            _hold_memo(op, chunk, jitted, remembered)
    yield name, result
    if "memo" in ways and way.dynamic is None:
        yield "memo", remembered


def _is_compiled(sample: Sample, dtype: torch.dtype) -> bool:
    """Test if ``dtype`` is the data type in which a sample after the first `MOST` is compiled."""
    names = [n for n in known.DTYPES if getattr(torch, n) in sample.op.supported_dtypes(device())]
    return dtype is getattr(torch, names[sample.number // 2 % len(names)])


def _kind(way: str) -> str:
    """Name of a way in `WAYS`."""
    return "executor" if way.startswith("executor ") else way


def _usable(found: list[Sample]) -> list[Sample]:
    return [s for s in found if s.eager is not None]


def _result(op: Any, found: list[Sample]) -> Result:
    usable = len(_usable(found))
    return Result(full_name(op), usable, len(found) - usable)


def _chunks(found: list[Sample]) -> Iterator[list[Sample]]:
    cases = iter(found)
    while chunk := list(itertools.islice(cases, PER_CALLABLE)):
        yield chunk


def _hold_memo(op: Any, chunk: list[Sample], jitted: Any, result: Result) -> None:
    """Compile again with the memo, and without one; programs and guards must be equal."""

    calls = [(s.args, s.kwargs) for s in chunk]
    first = described(jitted)  # the others reset Dynamo, which keeps guards of what breaks
    sessions = (session(TORCH), session(TORCH, memo=False))
    again, without = (compiled(s, program_of(op), calls) for s in sessions)
    problems = Comparison(first, again, without).problems
    # PyTorch chooses between two kinds of max pooling in closures, which no key stands for.
    closures = "max_pool" in op.name or full_name(op) in known.UNREMEMBERED
    if without.misses and not again.hits and not closures:
        problems.append("the memo knows nothing")
    where = f"{chunk[0].where} to {chunk[-1].where}"
    result.problems += [Problem(Kind.RESULT, where, what) for what in problems]


# --------------------------------------------------------------------------- the tables

TABLES: Mapping[str, tuple[Known, ...]] = {
    "expansion": known.EXPANSIONS,
    "in place": known.IN_PLACE,
    "names": (known.LAPACK,),
    "symbols": known.SYMBOLS,
    "memo": (),
    "jit": known.OPERATIONS,
    "jit dynamic": known.OPERATIONS,
    "autograd": gradients.OPERATIONS,
}


def sweep_disagreements(
    way: str, dtype: torch.dtype, result: Result, *, complete: bool
) -> list[str]:
    """Disagreements between ``result`` and the tables of known differences.

    ``complete``: the samples were all of the operation's, or all but those after `MOST`.
    """
    complete = complete and (way in CHEAP or result.samples + result.eager_errors < MOST)
    name = str(dtype).removeprefix("torch.")
    kind, _, rest = way.partition(" ")
    if kind == "fx":
        return list(disagreements(result, known.GRAPHS, rest, complete=complete))
    if kind == "executor":  # it may round, and declines what autograd does
        table: tuple[Known, ...] = gradients.OPERATIONS
    else:
        table = TABLES[way]
    gradient = way == "autograd" or kind == "executor"
    case = f"first {name}" if gradient else f"dynamic {name}" if way == "jit dynamic" else name
    return list(disagreements(result, table, case, complete=complete and not gradient))
