"""The compiled regions of a session: each key is compiled once, those of one program together."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tj_core.compile.codegen import generate
from tj_core.compile.compilation import Counts
from tj_core.compile.layouts import declared, relaid
from tj_core.compile.region_kernels import RegionKernel
from tj_core.compile.reproducers import Reproducers
from tj_core.contract.decline import Decline
from tj_core.contract.fusion import Fused, Fusion, FusionRegion
from tj_core.edit.editor import TraceEditor
from tj_core.errors import PluginError, TjWarning
from tj_core.ir.trace import Body
from tj_core.passes.claim import claim

if TYPE_CHECKING:
    from tj_core.compile.kept_regions import KeptRegions
    from tj_core.contract.executors import Executor
    from tj_core.ir.symbol import Symbol
    from tj_core.ir.tags import TagRegistry

__all__ = ["FusedRegions", "without_executor"]


@dataclass
class FusedRegions:
    """The regions that a session has compiled, by key.

    In ``strict`` mode a region that fails is an error. ``kept`` are the regions on disk, if any are
    kept.
    """

    tags: TagRegistry
    strict: bool = False
    kept: KeptRegions | None = None
    kernels: dict[str, RegionKernel] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)
    reproducers: Reproducers = field(default_factory=Reproducers)

    def compile(
        self,
        regions: Iterable[tuple[Symbol, FusionRegion]],
        executors: Sequence[Executor],
        *,
        wait: bool = False,
        begin: bool = False,
    ) -> tuple[dict[Symbol, RegionKernel], Counts]:
        """The kernels of ``regions``, by symbol, and their counts; compiles new regions.

        With ``wait``, those that are not on disk wait for `finish`, which another thread calls.
        With ``begin``, they may be finished after this call; see `Fusion`.

        :raises PluginError: in strict mode, if an executor cannot compile a region.
        """
        wanted = list(regions)
        with self.lock:
            new = [(s, r) for s, r in wanted if self.is_new(r, wait)]
            for name, group in groupby(sorted(new, key=_owner), key=_owner):
                owner = next(e for e in executors if e.name == name)
                make = self.later if wait else partial(self.together, begin=begin)
                make(owner, [region for _, region in group], executors)
            kernels = {symbol: self.kernels[region.key] for symbol, region in wanted}
        kept = sum(self.kernels[region.key].kept for _, region in new)
        counts = Counts(len(new) - kept, len(wanted) - len(new), kept)
        return kernels, counts

    def is_new(self, region: FusionRegion, wait: bool) -> bool:
        """Test if ``region`` is to be compiled.

        A region that waits for the thread behind is compiled again for a program that does not
        wait, since that thread may need a lock that this one holds.
        """
        known = self.kernels.get(region.key)
        return known is None or (known.waiting and not wait)

    def together(
        self,
        owner: Executor,
        regions: Sequence[FusionRegion],
        executors: Sequence[Executor],
        *,
        begin: bool = False,
    ) -> None:
        """Compile ``regions`` of one executor together.

        A region that fails runs without its executor. In strict mode the failure is raised and the
        region not recorded, so that the next program tries again.
        """
        kernels = {kernel.region.key: kernel for kernel in self.made(owner, regions, executors)}
        kept = self.kept_for(executors)
        failed = compiled_or_failed(owner, list(kernels.values()), kept, begin=begin)
        wrong = {kernel.region.key for kernel, _ in failed}
        self.kernels |= {key: kernel for key, kernel in kernels.items() if key not in wrong}
        for kernel, error in failed:
            kernel.fail(error)
            self.kernels[kernel.region.key] = kernel

    def later(
        self, owner: Executor, regions: Sequence[FusionRegion], executors: Sequence[Executor]
    ) -> None:
        """Restore the ``regions`` that are on disk; the others wait for `finish`."""
        kernels = self.made(owner, regions, executors)
        kept = self.kept_for(executors)
        if kept is not None:
            restore(owner, kernels, kept)
        for kernel in kernels:
            kernel.waiting = kernel.fused is None
        self.kernels |= {kernel.region.key: kernel for kernel in kernels}

    def finish(
        self, kernels: Iterable[RegionKernel], executors: Sequence[Executor], step: Step
    ) -> list[tuple[RegionKernel, Exception]]:
        """Compile the ``kernels`` that wait, each in a ``step``, and return the failures.

        A region that fails runs without its executor from then on.
        """
        failed = []
        waiting = sorted((k for k in kernels if k.waiting), key=lambda k: k.executor)
        for name, group in groupby(waiting, key=lambda k: k.executor):
            owner, batch = next(e for e in executors if e.name == name), list(group)
            for kernel, error in compiled_or_failed(owner, batch, self.kept_for(executors), step):
                kernel.leave(str(error) or type(error).__name__)
                failed.append((kernel, error.with_traceback(None)))
        return failed

    def made(
        self, owner: Executor, regions: Iterable[FusionRegion], executors: Sequence[Executor]
    ) -> list[RegionKernel]:
        """Kernels of ``regions``, not compiled yet."""
        assert owner.fusion is not None
        without = partial(without_executor, executors=executors, tags=self.tags)
        rest = owner.name, owner.owner, without, self.warn
        return [RegionKernel(r, *rest, detached=owner.fusion.detached) for r in regions]

    def kept_for(self, executors: Sequence[Executor]) -> KeptRegions | None:
        """The regions on disk, if they are for programs with ``executors``."""
        return self.kept if self.kept is not None and self.kept.serves(executors) else None

    def warn(self, kernel: RegionKernel, reason: Exception | str, sizes: Mapping[str, int]) -> None:
        """Warn that a region runs without its executor, always or for ``sizes``.

        :raises PluginError: in strict mode, instead of the warning.
        """
        what = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else reason
        where = f" for {', '.join(f'{k} = {n}' for k, n in sizes.items())}" if sizes else ""
        said = (
            f"{kernel.owner} failed on region {kernel.region.key} "
            f"({len(kernel.region.body.calls)} calls){where}: {what}"
        )
        if self.strict:
            raise PluginError(said, source=kernel.region.source) from (
                reason if isinstance(reason, Exception) else None
            )
        line = f" (at {kernel.region.source})" if kernel.region.source else ""
        text = f"tj: {said}{line}; its operations run one by one"
        if (path := self.reproducers.save(kernel, what, sizes)) is not None:
            text += f"; python {path} shows it"
        warnings.warn(TjWarning(text), stacklevel=3)


def _owner(item: tuple[Symbol, FusionRegion]) -> str:
    return item[0].namespace


Step = Callable[[], contextlib.AbstractContextManager[Any]]
"""A context around the compilation of each region behind a program."""


def compiled_or_failed(
    owner: Executor,
    kernels: Sequence[RegionKernel],
    kept: KeptRegions | None,
    step: Step | None = None,
    *,
    begin: bool = False,
) -> list[tuple[RegionKernel, Exception]]:
    """Compile the regions of ``kernels`` together; after a failure, one by one.

    Returns those that failed, with their errors. See `compiled`.
    """
    try:
        compiled(owner, kernels, kept, step, begin=begin)
    except Exception:  # one region is the cause
        failed = []
        for kernel in kernels:
            try:
                compiled(owner, [kernel], None, step)
            except Exception as error:
                failed.append((kernel, error))
        return failed
    return []


def compiled(
    owner: Executor,
    kernels: Sequence[RegionKernel],
    kept: KeptRegions | None = None,
    step: Step | None = None,
    *,
    begin: bool = False,
) -> None:
    """Let ``owner`` compile the regions of ``kernels``, or restore them from ``kept``.

    Compiled regions are then added to ``kept``; of several processes one compiles each. With
    ``step``, they are compiled behind a program, which relies on the declared strides. With
    ``begin``, compilation may go on after this call; see `Fusion`.
    """
    fusion = owner.fusion
    assert fusion is not None
    made: list[tuple[RegionKernel, FusionRegion, Fused | Decline, bool]] = []
    regions = [_for_executor(k, chooses=step is None) for k in kernels]
    around = step or contextlib.nullcontext
    together = (fusion.begin if begin else None) or fusion.together or contextlib.nullcontext
    with kept.making(owner, regions) if kept is not None else contextlib.nullcontext():
        with together():
            for kernel, region in zip(kernels, regions, strict=True):
                with around():
                    made.append((kernel, region, *_made(owner, fusion, region, kept)))
            with around():  # what is compiled together at the end is a step, too
                pass
        for kernel, region, fused, known in made:
            if isinstance(fused, Decline):
                kernel.leave(fused.reason)
                continue
            kernel.use(fused, known)
            if kept is not None and not known:
                kept.keep(owner, region, fused)


def restore(owner: Executor, kernels: Iterable[RegionKernel], kept: KeptRegions) -> None:
    """Restore those of ``kernels`` that are in ``kept``."""
    assert owner.fusion is not None
    found = []
    with (owner.fusion.together or contextlib.nullcontext)():
        for kernel in kernels:
            # As a program compiled it that runs its kernels at once, or behind.
            both = (_for_executor(kernel, chooses=True), _for_executor(kernel, chooses=False))
            fused = next(filter(None, (kept.find(owner, region) for region in both)), None)
            if fused is not None:
                found.append((kernel, fused))
    for kernel, fused in found:
        kernel.use(fused, kept=True)


def _for_executor(kernel: RegionKernel, *, chooses: bool) -> FusionRegion:
    """The region as its executor gets it, which ``chooses`` strides of flexible outputs or not."""
    region = replace(kernel.region, first_run=kernel.first_run)
    return region if chooses else replace(region, flexible=frozenset())


def _made(
    owner: Executor, fusion: Fusion, region: FusionRegion, kept: KeptRegions | None
) -> tuple[Fused | Decline, bool]:
    """The compiled or restored region, with its seconds, or why it is declined; and True if it was
    restored.
    """
    start = time.perf_counter()
    found = kept.find(owner, region) if kept is not None else None
    fused = found or fusion.fuse(region)
    if isinstance(fused, Decline):
        return fused, False
    if not isinstance(fused, Fused):
        raise TypeError(f"fuse returned {type(fused).__name__}, not Fused")
    if not fused.strides.keys() <= region.flexible:
        fixed = min(fused.strides.keys() - region.flexible)
        raise ValueError(f"it chose the strides of output {fixed}, which are fixed")
    timed = fused if fused.seconds else replace(fused, seconds=time.perf_counter() - start)
    return timed, found is not None


def without_executor(
    region: FusionRegion, executors: Sequence[Executor], tags: TagRegistry
) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that runs ``region`` by the fallbacks among ``executors``."""
    trace = TraceEditor.program_of(_unowned(region.body), region.language, region.name)
    claimed = claim(trace, [e for e in executors if e.fallback], tags)
    function = generate(claimed.trace, claimed.implementations, boxed=True).function
    places = declared(region.inputs, region.strides)
    return relaid(function, places, region.language.runtime)


def _unowned(body: Body) -> Body:
    """``body`` with its calls unclaimed."""
    return Body(body.inputs, tuple(c.replace(executor=None) for c in body.calls), body.outputs)
