"""Executors' parts in packages: regions as members, and kernels from members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    Body,
    Executor,
    FusionRegion,
    PackageError,
    Symbol,
    Trace,
    TraceEditor,
    interpreter,
)
from tj_core.internal import RegionKernel, plugin_executors

from tj_torch.package.running import language, parsed, text_of

if TYPE_CHECKING:
    import torch
    from tj_core.extend import Session

__all__ = ["Members", "implementations", "installed", "members"]

Members = tuple[dict[str, dict[str, Any]], list[dict[str, Any]], dict[str, bytes]]
"""Facts of executors by name, facts of regions, and files by name."""


def members(traces: Iterable[Trace], kernels: Sequence[RegionKernel], session: Session) -> Members:
    """The parts of executors, but the fallback, that calls of ``traces`` need elsewhere.

    :raises PackageError: naming an executor that takes no part in packages, or whose region fails.
    """
    plugins = {record.name: plugin for plugin, record in session.plugins.executors()}
    owners = {record.name: record for record in session.executors}
    used = {c.executor for t in traces for c in t.walk_programs() if c.executor is not None}
    used |= {symbol.namespace for k in kernels for symbol in k.region.implementations}
    facts: dict[str, dict[str, Any]] = {}
    regions: list[dict[str, Any]] = []
    files: dict[str, bytes] = {}
    for name in sorted(used):
        executor = owners.get(name)
        if executor is None:
            raise PackageError(f"the executor {name!r} is an object of the program, in no plugin")
        if executor.fallback:
            continue
        mine = [kernel for kernel in kernels if kernel.executor == name]
        packaging = executor.packaging
        if packaging is None or (mine and packaging.members is None):
            raise PackageError(
                f"{executor.owner} takes no part in packages",
                hint="leave it out: executors=[...] names those to ask",
            )
        distribution = session.plugins.state(plugins[name]).distribution
        facts[name] = {
            "plugin": plugins[name],
            "distribution": distribution,
            "options": dict(packaging.options),
        }
        if not mine:
            continue
        assert packaging.members is not None
        for kernel in mine:
            facts_, text = _region(kernel)
            regions.append(facts_)
            files[f"traces/{kernel.region.name}.txt"] = text
        made = packaging.members([(k.region, k.fused) for k in mine if k.fused is not None])
        files |= {f"executors/{name}/{file}": data for file, data in made.items()}
    return facts, regions, files


def _region(kernel: RegionKernel) -> tuple[dict[str, Any], bytes]:
    """The facts of a region beside its trace, and the text of that.

    :raises PackageError: if the region runs without its executor.
    """
    region = kernel.region
    if kernel.failure is not None or kernel.fused is None:
        raise PackageError(f"{kernel.owner} failed on region {region.key}", source=region.source)
    # Symbols run. Bodies would print values under names of the region's own.
    calls = (call.replace(body=None) for call in region.body.calls)
    body = Body(region.body.inputs, tuple(calls), region.body.outputs)
    trace = TraceEditor.program_of(body, region.language, region.name)
    facts = {
        "executor": kernel.executor,
        "key": region.key,
        "backward": region.backward,
        "flexible": sorted(region.flexible),
        "strides": [[i, list(s)] for i, s in region.strides.items()],
        "overwritten": [[i, place] for i, place in region.overwritten.items()],
    }
    return facts, text_of(trace)


def installed(executors: Mapping[str, Mapping[str, Any]]) -> dict[str, Executor]:
    """The executors of a package by name, from the installed plugins.

    :raises PackageError: if a plugin is not installed, has another executor now, or has one that
        cannot run on this machine.
    """
    if not executors:
        return {}
    options: dict[str, dict[str, Any]] = {}
    for facts in executors.values():
        options.setdefault(facts["plugin"], {}).update(facts["options"])
    found = plugin_executors(options.keys(), options)
    for name in executors:
        executor = found.get(name)
        if executor is None or executor.packaging is None:
            raise PackageError(f"no installed plugin has the executor {name!r} for packages")
        unavailable = executor.packaging.unavailable
        reason = None if unavailable is None else unavailable()
        if reason is not None:
            raise PackageError(f"{executor.owner} cannot run here: {reason}")
    return {name: found[name] for name in executors}


def implementations(
    traces: Iterable[Trace],
    executors: Mapping[str, Executor],
    regions: Sequence[Mapping[str, Any]],
    files: Mapping[str, bytes],
    constants: Mapping[str, torch.Tensor],
) -> dict[Symbol, Any]:
    """The implementations of symbols in ``traces`` that are claimed by ``executors``.

    :raises PackageError: if one has none.
    """
    made: dict[Symbol, Any] = {}
    for name, executor in executors.items():
        mine = [
            _restored(row, files, constants, executors)
            for row in regions
            if row["executor"] == name
        ]
        made |= _kernels(executor, mine, files)
    claimed = {
        call.symbol for t in traces for call in t.walk_programs() if call.executor in executors
    }
    return made | {s: _implementation(s, executors) for s in claimed - made.keys()}


def _implementation(symbol: Symbol, executors: Mapping[str, Executor]) -> Callable[..., Any]:
    found = executors[symbol.namespace].implementation(symbol)
    if found is None:
        raise PackageError(f"nothing runs {symbol}")
    return found


def _restored(
    row: Mapping[str, Any],
    files: Mapping[str, bytes],
    constants: Mapping[str, torch.Tensor],
    executors: Mapping[str, Executor],
) -> FusionRegion:
    trace = parsed(files[f"traces/region_{row['key']}.txt"], constants)
    hosted = {c.symbol for c in trace.calls if c.executor in executors}
    return FusionRegion(
        Body(trace.inputs, trace.calls, trace.outputs),
        row["key"],
        language(),
        row["backward"],
        frozenset(row["flexible"]),
        {i: tuple(strides) for i, strides in row["strides"]},
        implementations={symbol: _implementation(symbol, executors) for symbol in hosted},
        overwritten={i: place for i, place in row["overwritten"]},
    )


def _kernels(
    executor: Executor, regions: Sequence[FusionRegion], files: Mapping[str, bytes]
) -> dict[Symbol, RegionKernel]:
    """The kernels of an executor's regions, which are checked in their first runs."""
    if not regions:
        return {}
    packaging, fusion = executor.packaging, executor.fusion
    assert packaging is not None
    assert packaging.restore is not None
    assert fusion is not None
    prefix = f"executors/{executor.name}/"
    own = {n.removeprefix(prefix): data for n, data in files.items() if n.startswith(prefix)}
    rest = executor.name, executor.owner, _one_by_one, _refused
    made = [RegionKernel(r, *rest, detached=fusion.detached) for r in regions]
    runs = [replace(k.region, first_run=k.first_run) for k in made]
    for kernel, fused in zip(made, packaging.restore(runs, own), strict=True):
        kernel.use(fused, kept=True)
    return {Symbol(executor.name, k.region.name): k for k in made}


def _one_by_one(region: FusionRegion) -> Callable[[list[Any]], Sequence[Any]]:
    """The operations of ``region``, which raise the errors that eager raises."""
    run = interpreter(region)
    return lambda box: run(*box)


def _refused(kernel: RegionKernel, reason: Exception | str, sizes: Mapping[str, int]) -> None:
    raise PackageError(f"{kernel.owner} failed on region {kernel.region.key}: {reason}")
