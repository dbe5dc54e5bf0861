"""The choice between PyTorch's kernel and oneDNN's, for a call: by measurement, once.

Both run on tensors like the arguments. What oneDNN returns is compared with what PyTorch does, so
that a kernel which is wrong on this machine is not taken however fast it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tj_core.extend import BoundSymbol, Decline, cache_folder
from tj_torch.extend import resolve

from tj_onednn import adapter
from tj_onednn.operands import call_key, example
from tj_onednn.options import Options
from tj_onednn.store import Machine, Store, processor
from tj_onednn.timing import Times, compare

__all__ = ["Candidate", "Choices"]

CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""By how much results may differ, as a part of the largest value: sums are in another order."""

Verdict = bool | Decline


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel for an operation, and in which way it computes that, in a word.

    ``prepare`` is called with the arguments of a trial; what it returns lives as long as that.
    ``theirs`` is what it stands for, if that is more than the operation.
    """

    way: str
    kernel: Callable[..., Any]
    prepare: Callable[[Sequence[Any]], object] | None = None
    theirs: Callable[..., Any] | None = None


@dataclass
class Choices:
    """Who runs which call, by ``options``; each is found out once.

    Measured times are kept in a `Store` for the number of threads that PyTorch has.
    """

    options: Options
    stores: dict[int, Store] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    fitting: set[str] = field(default_factory=set)
    lock: Any = field(default_factory=threading.RLock)

    def ask(self, call: BoundSymbol, candidate: Candidate, best: float = 1.0) -> Verdict:
        """True where ``candidate`` is to run ``call``, else why not.

        ``best`` is what the best of the others takes, as a part of the time of PyTorch's kernel.
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
        """The part of the time of PyTorch's kernel that ``call`` takes with ``candidate`` there."""
        found = self.found(call, candidate)
        taken = isinstance(found, Times) and self.ask(call, candidate) is True
        return found.ratio if taken and isinstance(found, Times) else 1.0

    def found(self, call: BoundSymbol, candidate: Candidate) -> Times | str | None:
        """The times of both; why ``candidate`` cannot run ``call``; None if nobody asks for times.

        It is found out if it is not known.
        """
        key = f"{call_key(call)} {candidate.way}"
        with self.lock:
            if key in self.refused:
                return self.refused[key]
            if key in self.fitting:
                return None
            times = self.store().get(key) if self.options.choose == "measure" else None
            return times or self.tried(key, call, candidate)

    def tried(self, key: str, call: BoundSymbol, candidate: Candidate) -> Times | str | None:
        """What `found` finds, by runs of both."""
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
        """Why the result of ``mine`` cannot stand for that of ``theirs``, or None."""
        expected = theirs()
        try:
            got = mine()
        except RuntimeError as error:
            return f"oneDNN cannot: {str(error).splitlines()[0]}"
        if (got.shape, got.stride(), got.dtype) != (
            expected.shape,
            expected.stride(),
            expected.dtype,
        ):
            return "oneDNN returns it in another layout"
        rounds = self.options.precision == "bfloat16"
        allowed = CLOSE[torch.bfloat16 if rounds else expected.dtype]
        difference = (got.double() - expected.double()).abs().max()
        if not difference <= allowed * expected.abs().max().double():
            return f"oneDNN is wrong by {difference.item():.2g} here"
        return None

    def fingerprint(self) -> str | None:
        """What choices hold for; None once one was made of times that were not stable."""
        with self.lock:
            store = self.store()
            chance = any(not times.stable for times in (store.known or {}).values())
        settings = store.machine, torch.backends.mkldnn.enabled
        return None if chance else repr(settings)

    def store(self) -> Store:
        """The times for the number of threads there is now."""
        threads = torch.get_num_threads()
        if threads not in self.stores:
            self.stores[threads] = Store(self.folder(), machine(threads))
        return self.stores[threads]

    def folder(self) -> Path | None:
        """Where times are kept, if anywhere."""
        folder = cache_folder(self.options.cache_dir)
        return None if folder is None else folder / "onednn"


def machine(threads: int) -> Machine:
    """What times measured now hold for."""
    capability = torch.backends.cpu.get_cpu_capability()
    return Machine(torch.__version__, f"{processor()} {capability}", threads)


def clock() -> Callable[[], float]:
    """CPU time of this thread where it does all the work: other programs do not count then."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
