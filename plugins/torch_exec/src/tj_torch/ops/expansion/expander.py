"""Expand calls: read metadata, effects and decomposition off runs on fake tensors.

A run is repeated with other settings where PyTorch requires it. Errors of the call itself become
`ExpansionError`, others `CannotExpand`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from tj_core.extend import PLAIN_CONTEXT, Context, is_subclass, leaves

from tj_torch.ops.denied import Denied, rules
from tj_torch.ops.errors import (
    CannotExpand,
    ExpansionError,
    InternalError,
    MakesSubclass,
    internal_error,
)
from tj_torch.ops.expansion.arguments import distinct_proxies, mentions_missing_device
from tj_torch.ops.expansion.recorder import NeedsPythonDispatcher
from tj_torch.ops.expansion.run import Expansion, Kind, Run
from tj_torch.ops.expansion.wrappers import WrappedRun
from tj_torch.ops.fake_modes import fake_mode
from tj_torch.ops.operators import OpTable
from tj_torch.ops.schema_facts import extension
from tj_torch.ops.sizes.program import Sizes, is_sized
from tj_torch.runtime.subclasses import is_wrapper_class
from tj_torch.torch_private import ops as private

__all__ = ["Expander", "Expansion", "Kind", "expand", "generators_untouched"]

T = TypeVar("T")


class Expander:
    """Expander of calls; a session has one, with the mode of all its fake tensors.

    ``denied`` are functions that must not run on fake tensors, ``makers`` functions that make
    tensor subclasses from plain tensors.
    """

    __slots__ = ("_mode", "_table", "_usable", "denied", "makers")

    def __init__(self, denied: Denied | None = None) -> None:
        self.denied = denied or Denied(rules())
        self.makers: set[Callable[..., Any]] = set()
        self._mode: Any = None
        self._table = OpTable()
        self._usable: dict[str, bool] = {}

    def expand(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        context: Context = PLAIN_CONTEXT,
        sizes: Sizes | None = None,
    ) -> Expansion:
        """Expand ``fn(*args, **kwargs)`` under ``context``.

        ``args`` and ``kwargs`` are trees of core proxies and constants. Keys that ``context``
        lacks have the values of a new process: gradients on, no autocast. Random number generators
        are left as they are. ``sizes`` has the symbols in the arguments' metadata; the caller has
        to add the expansion's guards.

        :raises CannotExpand: if the call works, but not on fake tensors.
        :raises ExpansionError: if PyTorch raises for these arguments, from PyTorch's error.
        :raises InternalError: for a bug of tj itself, after a warning.
        """
        return self.run(_expansion, fn, args, kwargs, context, sizes)

    def run(
        self,
        work: Callable[[Run], T],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]],
        context: Context,
        sizes: Sizes | None = None,
        *,
        wraps: bool = False,
    ) -> T:
        """Result of ``work`` on a run of the call, repeated with other settings where needed.

        Arguments and errors as in `expand`. ``wraps`` forces a run for tensor subclasses though
        none is among the arguments.
        """
        reason = self.denied.reason(fn)
        if reason is not None:
            raise CannotExpand(reason)
        tree = (tuple(args), dict(kwargs))
        arguments = distinct_proxies(tree)
        self._mode = self._mode or fake_mode()
        wraps = wraps or is_wrapper_class(fn) or fn in self.makers
        wraps = wraps or any(map(is_subclass, leaves(tree)))
        given = self._mode, self._table, self.denied, fn, tree, arguments, context, sizes or Sizes()
        run = (WrappedRun if wraps else Run)(*given)
        if mentions_missing_device(fn, tree, self.usable):
            run.autograd = False
        if any(is_sized(a.proxy) for a in arguments.values()):
            run.make_symbolic()
            run.decompose = bool(run.symbols)  # kernels in C++ may ask for concrete sizes
        try:
            with generators_untouched(), private.quiet():
                return self._attempt(run, work)
        except InternalError as error:
            error.warn()
            raise

    def _attempt(self, run: Run, work: Callable[[Run], T]) -> T:
        """Call ``work``; on an error that other settings can avoid, change them and try again."""
        try:
            return work(run)
        except MakesSubclass:
            return self._attempt(WrappedRun.of(run), work)
        except NeedsPythonDispatcher:
            run.decompose = True
            run.again()
            return self._attempt(run, work)
        except private.data_dependent() as error:
            if run.symbolic is not None:
                raise _classified(run, error) from error
            run.make_symbolic()
            return self._attempt(run, work)
        except RuntimeError as error:
            if run.nonleaf or "leaf Variable that requires grad" not in str(error):
                raise _classified(run, error) from error
            run.nonleaf = True
            run.again()
            return self._attempt(run, work)
        except CannotExpand:
            raise
        except Exception as error:
            raise _classified(run, error) from error

    def usable(self, kind: str) -> bool:
        """False for a device type that this machine lacks; True for any other word."""
        if not kind.isidentifier():
            return True
        known = self._usable.get(kind)
        if known is None:
            known = self._usable[kind] = _usable(kind)
        return known


def expand(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    context: Context = PLAIN_CONTEXT,
) -> Expansion:
    """`Expander.expand` with a new expander."""
    return Expander().expand(fn, args, kwargs, context)


def _expansion(run: Run) -> Expansion:
    dense = not isinstance(run, WrappedRun)
    return run.by_schema() if dense and extension(run.fn) is not None else run.expansion()


def _usable(kind: str) -> bool:
    try:
        torch.device(kind)
    except RuntimeError:
        return True  # names no device
    try:
        return kind in ("cpu", "meta") or bool(torch.get_device_module(kind).is_available())
    except (RuntimeError, AttributeError):
        return False


@contextlib.contextmanager
def generators_untouched() -> Iterator[None]:
    """Restore the state of PyTorch's default CPU generator at exit."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _classified(run: Run, error: Exception) -> CannotExpand | ExpansionError:
    """Error to raise for ``error``: `ExpansionError` if a plain run on fakes raises, too."""
    if reason := private.fake_reason(error):
        return CannotExpand(reason)
    if internal := internal_error(error, getattr(run.fn, "__name__", repr(run.fn))):
        return internal
    try:
        run.plain()
    except NotImplementedError as plain:
        reason = private.fake_reason(plain) or f"fake tensors do not: {_first_line(plain)}"
        return CannotExpand(reason)
    except Exception as plain:
        if reason := private.fake_reason(plain):
            return CannotExpand(reason)
        return ExpansionError(f"{type(plain).__name__}: {_first_line(plain)}")
    return CannotExpand(f"functionalization fails: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
