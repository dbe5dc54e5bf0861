"""``tj.jit(f, compile="background")``: a program whose kernels are compiled behind its calls.

Such a program exists twice, made of the same traces: *plain*, with the operations of each region
one by one, and *fused*, with the executors' kernels. Calls run the plain program until the fused
one is whole. That needs the kernels of the forward, and of the backwards that were asked for so
far; if none was, those of the usual backward.

A backward always belongs to the program whose forward has run. It computes some values of the
forward again and compares them with saved ones, as the gradient of a maximum does. A kernel and
PyTorch round differently, so the comparison would fail across programs.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tj_core.compile.worker import stop_at_exit, worker
from tj_core.errors import TjWarning

if TYPE_CHECKING:
    from tj_core.compile.region_kernels import RegionKernel
    from tj_core.compile.worker import Worker
    from tj_core.contract.beside import Beside
    from tj_core.contract.executors import Executor

__all__ = ["Behind", "further_programs", "make_expected"]


class _Regions(Protocol):
    """The compiled regions of a session; see `tj_core.compile.fusing.FusedRegions`."""

    strict: bool

    def finish(
        self,
        kernels: Iterable[RegionKernel],
        executors: Sequence[Executor],
        step: Callable[[], Any],
    ) -> list[tuple[RegionKernel, Exception]]: ...

    def warn(
        self, kernel: RegionKernel, reason: Exception | str, sizes: Mapping[str, int]
    ) -> None: ...


class Behind:
    """One program whose kernels are compiled behind its calls.

    ``kernels`` are the kernels of its regions. ``run`` is the fused program as soon as it answers
    calls.
    """

    def __init__(
        self,
        name: str,
        regions: _Regions,
        executors: Sequence[Executor],
        kernels: Iterable[RegionKernel],
        beside: Beside,
    ) -> None:
        self.name = name
        self.regions = regions
        self.executors = executors
        self.beside = beside
        self.kernels: dict[str, RegionKernel] = {}
        self.run: Callable[..., Any] | None = None
        self._plain: Callable[..., Any] | None = None
        self._fused: Callable[..., Any] | None = None
        self._failed: list[tuple[RegionKernel, Exception]] = []
        self._error: Exception | None = None
        self._said = False
        self._at: Worker | None = None
        self._lock = threading.Lock()
        self.add(kernels)

    def between(self, plain: Callable[..., Any], fused: Callable[..., Any]) -> Callable[..., Any]:
        """A function that runs ``plain`` until ``fused`` is whole.

        ``programs`` has the further programs of an assembled function, such as backwards: mappings
        from the form of a call to its program, which is made at its first use. ``known`` are the
        forms made so far, ``usual`` is the form that is asked for most often, and ``expected`` is
        true if it probably will be.
        """
        self._plain, self._fused = plain, fused

        def function(*args: Any) -> Any:
            run = self.run
            return self._meanwhile(*args) if run is None else run(*args)

        return function

    @property
    def waits(self) -> bool:
        """True until calls run the fused program, or something failed."""
        return self._plain is not None and self._error is None

    @property
    def waiting(self) -> int:
        """Number of regions that run without their kernels now."""
        return len(self.kernels) if self._plain is not None else 0

    def add(self, kernels: Iterable[RegionKernel]) -> None:
        """Compile further ``kernels``, those of a backward."""
        with self._lock:
            self.kernels.update((kernel.region.key, kernel) for kernel in kernels)

    def queue(self) -> None:
        """Pass the program to the thread, once in each process: a child process begins anew."""
        with self._lock:
            if self._at is worker() or not self.waits:
                return
            self._at = worker()
            # Under the lock: who finds it queued waits for the worker.
            self._at.put(self, Behind._work)

    def tell(self) -> None:
        """Warn of failures since the last call.

        :raises PluginError: in strict mode, instead of the warning.
        """
        with self._lock:
            failed, self._failed = self._failed, []
        for kernel, error in failed:
            self.regions.warn(kernel, error, {})
        if self._error is None or self._said:
            return
        self._said = True
        if self.regions.strict:
            raise self._error
        text = f"{type(self._error).__name__}: {self._error}"
        what = f"{self.name} keeps to PyTorch's kernels, as a compilation behind it failed"
        warnings.warn(TjWarning(f"tj: {what}: {text}"), stacklevel=3)

    # ----------------------------------------------------------------------------- calls

    def _meanwhile(self, *args: Any) -> Any:
        self.tell()
        plain = self._plain
        if plain is None:  # the fused program is whole
            self.run = self._fused
            assert self.run is not None
            return self.run(*args)
        try:
            with self.beside.answering():
                return plain(*args)
        finally:
            # After the first call, which is not to run beside the compilation.
            if self._at is not worker():
                self.queue()

    # ----------------------------------------------------------------------------- the thread

    def _work(self) -> None:
        try:
            while self._compile():
                pass
        except Exception as error:
            # The traceback holds the frames, and these the program.
            self._error = error.with_traceback(None)
            return
        if not self._failed:
            self.run = self._fused
        self._plain = None

    def _compile(self) -> bool:
        """Compile what waits now; True if something may wait still."""
        plain, fused = further_programs(self._plain), further_programs(self._fused)
        for each in plain:
            if not each.known:
                with self._step():
                    each[each.usual]
        forms = [[*each.known] for each in plain]
        with self._lock:
            kernels = [kernel for kernel in self.kernels.values() if kernel.waiting]
        failed = self.regions.finish(kernels, self.executors, self._step)
        with self._lock:
            self._failed += failed
        for each, known in zip(fused, forms, strict=True):
            for form in known:
                with self._step():
                    each[form]
        return forms != [[*each.known] for each in plain]

    @contextlib.contextmanager
    def _step(self) -> Any:
        stop_at_exit()
        with self.beside.step():
            yield


def make_expected(assembled: Any) -> None:
    """Make the further programs of an ``assembled`` function that calls will probably ask for.

    They are made in their usual forms; see `Behind.between`.
    """
    for each in further_programs(assembled):
        if each.expected:
            each[each.usual]


def further_programs(assembled: Any) -> tuple[Any, ...]:
    """The further programs of an ``assembled`` function; see `Behind.between`."""
    return tuple(getattr(assembled, "programs", ()))
