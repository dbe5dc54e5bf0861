"""The ways in which a user runs a program, and the comparison of each with eager."""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import tj_core as tj
import torch
from torch.utils.checkpoint import checkpoint

from tj_conformance.oracle.configurations import OTHERS, tolerant
from tj_conformance.programs.aliasing import Program, Report, Scene, check

__all__ = ["WAYS", "Jit", "Way", "compare"]

Compiled = Callable[..., Any]

Jit = Callable[..., Any]
"""`tj_core.jit`, or a function in its place, which takes its options."""


def _plainly(function: Compiled, *args: Any) -> Any:
    return function(*args)


def _as_eager_raises(function: Compiled, *args: Any) -> Any:
    """Call it; `torch.compile` raises a subclass of the error of an operation."""
    try:
        return function(*args)
    except RuntimeError as error:
        raise RuntimeError(*error.args) from error


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compile a program, and to call it: eager's calls are made in the same way.

    ``dtype`` is that of its matrices. Values may differ by ``tolerance``, relative to the largest
    one, or by the rounding of the configuration. ``tracks``: layers keep statistics. ``early``: an
    operation raises while the program is captured, before the program has written anything.
    """

    compiled: Callable[[Compiled, Jit], Compiled]
    call: Callable[..., Any] = _plainly
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    after: Callable[[Compiled], object] = lambda compiled: None
    dtype: str = "float64"
    tolerance: float | None = None
    tracks: bool = True
    early: bool = False


def _jit(**options: Any) -> Callable[[Compiled, Jit], Compiled]:
    return lambda function, jit: jit(function, **options)


def _backend(dynamic: bool | None) -> Callable[[Compiled, Jit], Compiled]:
    # The backend is named by its entry point, whose session is that of `tj.jit` without options.
    return lambda function, jit: torch.compile(function, backend="tj", dynamic=dynamic)


WAYS: dict[str, Way] = {
    "plain": Way(_jit()),
    "dynamic": Way(_jit(dynamic=True)),
    "backend": Way(_backend(None), call=_as_eager_raises, early=True),
    "backend, dynamic": Way(_backend(True), call=_as_eager_raises, early=True),
    "autocast": Way(
        _jit(),
        around=functools.partial(torch.autocast, "cpu", torch.bfloat16),
        dtype="float32",
        tolerance=3e-2,
    ),
    "no_grad": Way(_jit(), around=torch.no_grad),
    "inference": Way(_jit(), around=torch.inference_mode),
    # A compilation in the background has ended before another program is captured.
    "background": Way(_jit(compile="background"), after=tj.wait),
    # Which backwards run a checkpointed program again, and so update its statistics again, depends
    # on what is saved: eager saves an index that tj computes anew.
    "checkpoint": Way(
        _jit(), call=functools.partial(checkpoint, use_reentrant=False), tracks=False
    ),
    "disk": Way(_jit()),
}
"""The ways by name."""


@dataclass(frozen=True, slots=True)
class _Called:
    """A program as a way calls it."""

    way: Way
    function: Compiled
    compiled: bool = False

    def __call__(self, *args: Any) -> Any:
        with self.way.around():
            found = self.way.call(self.function, *args)
        if self.compiled:
            self.way.after(self.function)
        return found


def compare(
    name: str,
    build: Callable[[], Compiled],
    scenes: Sequence[Callable[[], Scene]],
    *,
    jit: Jit = tj.jit,
    double: bool = False,
) -> Report:
    """Compare a program in the way ``name`` with eager.

    ``build`` makes it: a function, or a module, whose parameters and buffers are compared. The way
    ``disk`` compares it in two sessions, of which the second finds the programs of the first.
    ``double``: gradients of gradients are compared, too.
    """
    way = WAYS[name]

    def make() -> Program:
        made = build()
        return Program(_Called(way, made), functools.partial(_state, made))

    def run(jit: Jit) -> Report:
        return check(
            make,
            scenes,
            jit=lambda called: _Called(way, way.compiled(called.function, jit), compiled=True),
            create_graph=double,
            ignore=("grad_fn",),
            lenient=True,
            other_saved=True,
            early=way.early,
        )

    with tolerant(way.tolerance):
        if name != "disk":
            return run(jit)
        with _folder() as folder:
            first = run(functools.partial(jit, session=_session(folder)))
            return run(functools.partial(jit, session=_session(folder))) if first.ok else first


def _state(program: Compiled) -> Any:
    if not isinstance(program, torch.nn.Module):
        return ()
    return dict(program.named_parameters()), dict(program.named_buffers())


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="tj-ways-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _session(folder: str) -> tj.Session:
    return tj.Session(disable=OTHERS, overrides={"cache_dir": folder})
