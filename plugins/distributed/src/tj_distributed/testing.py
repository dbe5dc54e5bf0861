"""Processes of a group on gloo, which run one program after another; for tests without a GPU."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.util
import multiprocessing
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tj_core.extend import makes_views
from torch import distributed

from tj_distributed.sequence import PREFIX

if TYPE_CHECKING:
    from tj_core.extend import Trace

__all__ = ["TIMEOUT", "Failure", "Ranks", "drawn"]

TIMEOUT = 60.0
"""Seconds after which a program that waits for another process ends with an error."""


_LETTERS = {
    "all_gather_into_tensor": "G", "reduce_scatter_tensor": "R", "all_reduce": "A",
    "all_to_all_single": "T", "broadcast": "B", "wait_tensor": "w",
}  # fmt: skip


def drawn(trace: Trace) -> str:
    """The calls of ``trace`` in order, a letter for each: ``G.Gw..Gw..R``.

    ``G``: a gather starts; ``R``: a reduction to shards; ``A``: a reduction; ``T``: all to all;
    ``B``: a broadcast; ``w``: a wait; ``.``: a call that computes. Views and announcements are left
    out.
    """
    found = []
    for call in trace.calls:
        name = call.symbol.qualname.removeprefix(PREFIX).partition(".")[0]
        if call.symbol.qualname.startswith(PREFIX):
            found.append(_LETTERS.get(name.removesuffix("_coalesced"), "C"))
        elif call.flat_outs and not makes_views(call):
            found.append(".")
    return "".join(found)


class Failure(NamedTuple):
    """An error of one process: its type's name, its text, and its traceback."""

    kind: str
    text: str
    trace: str


class Ranks:
    """``size`` processes. Each program has a group of its own, named by a new file."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self._start()

    def _start(self) -> None:
        # A fork would have the locks of PyTorch's threads, without the threads that free them.
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._runs = 0
        self._processes, self._ends = [], []
        for rank in range(self.size):
            end, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, self.size), daemon=True)
            process.start()
            # Else the pipe stays open when the process ends, and no `EOFError` says so.
            theirs.close()
            self._processes.append(process)
            self._ends.append(end)

    @property
    def alive(self) -> bool:
        """False if a process has ended: nothing runs on these ranks any more then."""
        return all(process.is_alive() for process in self._processes)

    def run(self, file: str, name: str, *args: Any) -> list[Any]:
        """Results of the function ``name`` in ``file`` by rank; a `Failure` for one that raises.

        Results and ``args`` are pickled. A process that ends is a `Failure`, too; nothing runs on
        these ranks any more then. Where one aborts, the program runs once more in new processes:
        gloo's threads may damage the heap of a program that gathers in eager
        (`tj_distributed.schedule.gloo`).

        :raises TimeoutError: if a process does not answer. The processes are ended then.
        """
        found = self._run(file, name, args)
        if found is None:
            self.close()
            self._start()
            found = self._run(file, name, args, last=True)
        assert found is not None
        return found

    def _run(self, file: str, name: str, args: Any, *, last: bool = False) -> list[Any] | None:
        self._runs += 1
        store = str(Path(self._folder.name) / str(self._runs))
        for end in self._ends:
            end.send_bytes(pickle.dumps((store, file, name, args)))
        found = []
        for rank, end in enumerate(self._ends):
            stop = time.monotonic() + 4 * TIMEOUT
            while not end.poll(0.5):
                if self._aborted and not last:
                    return None
                if time.monotonic() > stop:
                    self.close()
                    raise TimeoutError(f"rank {rank} does not answer")
            try:
                found.append(pickle.loads(end.recv_bytes()))
            except EOFError:
                # The pipe is closed a moment before the process has its exit code.
                self._processes[rank].join(TIMEOUT)
                if self._aborted and not last:
                    return None
                code = self._processes[rank].exitcode
                found.append(Failure("EOFError", f"rank {rank} has ended, with {code}", ""))
        return found

    @property
    def _aborted(self) -> bool:
        return any(process.exitcode == -signal.SIGABRT for process in self._processes)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        with contextlib.suppress(FileNotFoundError):  # it was closed before
            self._folder.cleanup()


def _serve(end: Any, rank: int, size: int) -> None:
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            store, file, name, args = pickle.loads(end.recv_bytes())
        except EOFError:
            return
        end.send_bytes(pickle.dumps(_run(store, rank, size, file, name, args)))


@functools.cache
def _loaded(file: str) -> Any:
    """The module in ``file``, which no import finds: tests are no package."""
    spec = importlib.util.spec_from_file_location(f"_{Path(file).stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(store: str, rank: int, size: int, file: str, name: str, args: Any) -> Any:
    try:
        with _group(store, rank, size):
            program: Callable[..., Any] = getattr(_loaded(file), name)
            return program(*args)
    except Exception as error:
        return Failure(type(error).__name__, str(error), traceback.format_exc())


@contextlib.contextmanager
def _group(store: str, rank: int, size: int) -> Iterator[None]:
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(store, size),
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=TIMEOUT),
    )
    try:
        # A rank that raises at once would leave the other in the middle of this; PyTorch numbers
        # its groups, so the two would not find each other in the next one either.
        distributed.barrier()
        yield
    finally:
        distributed.destroy_process_group()
