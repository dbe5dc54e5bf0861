"""Choice between PyTorch's kernel and oneDNN's for a call, by one measurement.

Both run on random tensors with the metadata of the arguments. The results are compared first, so
that a kernel that is wrong on this machine is never taken, however fast it is.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import BoundSymbol, Decline, cache_folder
from tj_torch.extend import agreed_by_ranks, has_several_ranks, resolve

from tj_onednn import adapter
from tj_onednn.operands import call_key, example
from tj_onednn.store import Machine, Store, processor
from tj_onednn.timing import Times, compare

if TYPE_CHECKING:
    from pathlib import Path

    from tj_onednn.options import Options

__all__ = ["Candidate", "Choices"]

CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Largest difference allowed, relative to the largest value: sums are in another order."""

Verdict = bool | Decline


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel for an operation; ``way`` is its variant, part of the key of measured times.

    ``prepare`` is called with the arguments of a trial; its result is kept alive during the trial.
    ``theirs`` is the reference, if the kernel computes more than the operation.
    """

    way: str
    kernel: Callable[..., Any]
    prepare: Callable[[Sequence[Any]], object] | None = None
    theirs: Callable[..., Any] | None = None


@dataclass
class Choices:
    """Choices by ``options``, each made once.

    Measured times are kept in one `Store` per number of threads. ``others`` are what other ranks
    have found, where this one has found something else.
    """

    options: Options
    stores: dict[int, Store] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    fitting: set[str] = field(default_factory=set)
    others: dict[str, Times | str] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)

    def ask(self, call: BoundSymbol, candidate: Candidate, best: float = 1.0) -> Verdict:
        """Decide if ``candidate`` runs ``call``: True, or a decline with the reason.

        ``best`` is the time of the best other candidate, relative to PyTorch's kernel.
        """
        found = self.found(call, candidate)
        if isinstance(found, str):
            return Decline(found)
        if found is None:
            return True
        if not found.stable:
            return Decline("its times were not stable, so that PyTorch's kernel stays")
        if found.ratio > (1 - self.options.margin) * best:
            return Decline(f"oneDNN took {found.ratio:.2f} of the time of PyTorch's kernel")
        return True

    def ratio(self, call: BoundSymbol, candidate: Candidate) -> float:
        """Time of ``call`` relative to PyTorch's kernel: that of ``candidate`` if it is taken, else
        1.
        """
        found = self.found(call, candidate)
        taken = isinstance(found, Times) and self.ask(call, candidate) is True
        return found.ratio if taken and isinstance(found, Times) else 1.0

    def found(self, call: BoundSymbol, candidate: Candidate) -> Times | str | None:
        """Look up, or measure, the times of both kernels.

        Returns a string, the reason, if ``candidate`` cannot run ``call``; None if it can and
        ``choose`` is "always", so that nothing is measured.
        """
        key = f"{call_key(call)} {candidate.way}"
        with self.lock:
            if key in self.refused:
                return self.refused[key]
            if key in self.fitting:
                return None
            times = self.store().get(key) if self.options.choose == "measure" else None
            return self.agreed(key, times or self.tried(key, call, candidate))

    def agreed(self, key: str, mine: Times | str | None) -> Times | str | None:
        """The times of the rank that was the first to measure ``key``, if there are several ranks.

        A kernel that is wrong on this machine is not run, whatever another has found.
        """
        if self.options.choose != "measure" or mine is None:
            return mine
        text = json.dumps(mine if isinstance(mine, str) else astuple(mine))
        said = json.loads(agreed_by_ranks(f"onednn {key}", text))
        theirs = said if isinstance(said, str) else Times(*said)
        if isinstance(mine, str) or theirs == mine:
            return mine
        self.others[key] = theirs
        return theirs

    def tried(self, key: str, call: BoundSymbol, candidate: Candidate) -> Times | str | None:
        """Run both kernels; return the result for `found`."""
        with adapter.apart():
            args, kwargs = example(call)
            kept = candidate.prepare(args) if candidate.prepare is not None else None
            theirs, mine = (
                lambda run=run: run(*args, **kwargs)
                for run in (candidate.theirs or resolve(call.symbol), candidate.kernel)
            )
            reason = self.wrong(theirs, mine)
            if reason is not None:
                self.refused[key] = reason
                return reason
            if self.options.choose == "always":
                self.fitting.add(key)
                return None
            times = compare(theirs, mine, clock())
            del kept
        self.store().put(key, times)
        return times

    def wrong(self, theirs: Callable[[], Any], mine: Callable[[], Any]) -> str | None:
        """Reason why the result of ``mine`` differs from that of ``theirs``; None if they agree."""
        expected = theirs()
        try:
            got = mine()
        except RuntimeError as error:
            return f"oneDNN cannot: {str(error).splitlines()[0]}"
        pairs = zip(_results(expected), _results(got), strict=True)
        return next(filter(None, (self.differs(*pair) for pair in pairs)), None)

    def differs(self, expected: torch.Tensor | None, got: torch.Tensor | None) -> str | None:
        """Reason why ``got`` cannot stand for ``expected``; None if it can."""
        if expected is None or got is None:
            return None if expected is got else "oneDNN returns other results"
        # Calls after it were expanded for the strides of PyTorch's kernel.
        if (got.shape, got.stride(), got.dtype) != (
            expected.shape,
            expected.stride(),
            expected.dtype,
        ):
            return "oneDNN returns it in another layout"
        # The user has asked for rounded factors: float32 results differ as those of bfloat16 do.
        rounds = self.options.precision == "bfloat16"
        allowed = CLOSE[torch.bfloat16 if rounds else expected.dtype]
        difference = (got.double() - expected.double()).abs().max()
        # Not `>`: a NaN compares false either way, and counts as wrong.
        if not difference <= allowed * expected.abs().max().double():
            return f"oneDNN is wrong by {difference.item():.2g} here"
        return None

    def fingerprint(self) -> str | None:
        """Settings that the choices depend on; None if one was based on unstable times.

        Of several ranks, also the folder whose times decide: a finished program holds choices, and
        one of another folder's might hold others.
        """
        with self.lock:
            store = self.store()
            others = [t for t in self.others.values() if isinstance(t, Times)]
            chance = any(not times.stable for times in [*(store.known or {}).values(), *others])
        # A stored program has these choices in it; another machine would make others.
        settings = store.machine, torch.backends.mkldnn.enabled
        if chance or not has_several_ranks():
            return None if chance else repr(settings)
        mine = store.folder_id()
        return mine and repr((settings, agreed_by_ranks("onednn folder", mine)))

    def store(self) -> Store:
        """The times for PyTorch's current number of threads."""
        threads = torch.get_num_threads()
        if threads not in self.stores:
            self.stores[threads] = Store(self.folder(), machine(threads))
        return self.stores[threads]

    def folder(self) -> Path | None:
        """Folder of the stored times; None without one."""
        folder = cache_folder(self.options.cache_dir)
        return None if folder is None else folder / "onednn"


def _results(returned: Any) -> Sequence[torch.Tensor | None]:
    return returned if isinstance(returned, tuple | list) else (returned,)


def machine(threads: int) -> Machine:
    """The machine that times measured now apply to."""
    capability = torch.backends.cpu.get_cpu_capability()
    return Machine(torch.__version__, f"{processor()} {capability}", threads)


def clock() -> Callable[[], float]:
    """Select the clock: with one thread its CPU time, which other programs do not affect."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
