"""Run a failed region again: the function that tj's saved scripts for such regions call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tj_core.compile.fusing import compiled, without_executor
from tj_core.compile.region_kernels import EveryRegionRun, RegionKernel
from tj_core.contract.fusion import FusionRegion
from tj_core.errors import PluginError, TjError
from tj_core.host.session import Session
from tj_core.ir.proxy import NumberProxy, Proxy, SymDim, TensorProxy
from tj_core.ir.sizes import evaluate_size
from tj_core.ir.symbol import Symbol
from tj_core.ir.trace import Body, BoundSymbol, Trace

if TYPE_CHECKING:
    from tj_core.contract.executors import Executor

__all__ = ["example_value", "reproduce"]


def reproduce(
    executor: str,
    *,
    trace: str,
    sizes: Mapping[str, int] | None = None,
    backward: bool = False,
    flexible: Sequence[int] = (),
    strides: Mapping[int, tuple[int, ...]] | None = None,
    overwritten: Mapping[int, int] | None = None,
    session: Session | None = None,
) -> None:
    """Compile a region by ``executor``, run it, and compare it with its operations one by one.

    ``trace`` is the text of the region, ``sizes`` are the values of its symbols; for ``backward``,
    ``flexible``, ``strides`` and ``overwritten`` see `FusionRegion`. Prints a line on success.

    :raises TjError: if there is no such executor, or it does not fuse.
    :raises PluginError: if the compiled region deviates from its operations.
    :raises Exception: any error of the executor.
    """
    session = session or Session()
    owner = next((e for e in session.executors if e.name == executor and e.fusion), None)
    if owner is None:
        known = ", ".join(e.name for e in session.executors if e.fusion) or "none"
        raise TjError(f"there is no executor {executor!r} that fuses", hint=f"there are: {known}")
    region = _region(trace.strip("\n"), sizes or {}, backward, session)
    free = frozenset(flexible)
    region = replace(region, flexible=free, strides=strides or {}, overwritten=overwritten or {})
    without = partial(without_executor, executors=session.executors, tags=session.tags)
    kernel = RegionKernel(region, owner.name, owner.owner, without, _raise)
    compiled(owner, [kernel])
    runtime = session.language.runtime
    box = [example_value(p, sizes or {}, session) for p in region.actual_inputs]
    EveryRegionRun(kernel, kernel.call, runtime, region.name, {})(box)
    print(f"region {region.name} of {owner.owner} compiles, and returns what its operations return")


def _raise(kernel: RegionKernel, reason: Exception | str, sizes: Mapping[str, int]) -> None:
    if isinstance(reason, Exception):
        raise reason
    raise PluginError(f"{kernel.owner} ran region {kernel.region.key}: {reason}")


def _region(text: str, sizes: Mapping[str, int], backward: bool, session: Session) -> FusionRegion:
    trace = Trace.parse(text, language=session.language)
    with_hints = partial(_with_hints, sizes=sizes)
    calls = tuple(call.map_proxies(with_hints) for call in trace.calls)
    outputs = tuple(map(with_hints, trace.outputs))
    body = Body(tuple(map(with_hints, trace.inputs)), calls, outputs)
    key = trace.name.removeprefix("region_")
    hosted = {c.symbol: run for c in calls if (run := _hosted(c, session.executors)) is not None}
    return FusionRegion(body, key, session.language, backward, implementations=hosted)


def _hosted(call: BoundSymbol, executors: tuple[Executor, ...]) -> Callable[..., Any] | None:
    """The implementation of a call that another executor claimed, or None."""
    owner = next((e for e in executors if e.name == call.symbol.namespace), None)
    rule = owner.claims.get(Symbol.parse(call.symbol.name)) if owner is not None else None
    return rule.value.implementation if rule is not None else None


def _with_hints(p: Proxy, sizes: Mapping[str, int]) -> Proxy:
    if isinstance(p, TensorProxy):
        return p.map_symbols(lambda n: SymDim(n.name, _value(n, sizes)))
    if isinstance(p, NumberProxy) and p.expr:
        return p.replace(hint=evaluate_size(p.expr, sizes.__getitem__))
    return p


def _value(size: SymDim, sizes: Mapping[str, int]) -> int:
    return int(evaluate_size(size.name, sizes.__getitem__))


def example_value(p: Proxy, sizes: Mapping[str, int], session: Session) -> Any:
    """A value with the metadata of ``p``, whose symbols have the values ``sizes``.

    :raises TjError: if no dialect makes such values, or a symbol has no value.
    """
    if isinstance(p, NumberProxy):
        return evaluate_size(p.expr or "0", sizes.__getitem__)
    if isinstance(p, TensorProxy):
        p = p.map_symbols(lambda n: _value(n, sizes))
    made = (v.example(p) for v in session.language.runtime if v.example is not None)
    found = next((value for value in made if value is not None), None)
    if found is None:
        raise TjError(f"no dialect makes a value like {p.name}")
    return found
