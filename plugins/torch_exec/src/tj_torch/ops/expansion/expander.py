"""Expand calls: read metadata, effects and decomposition off runs on fake tensors.

A run is repeated with other settings where PyTorch requires it. Errors of the call itself become
`ExpansionError`, others `CannotExpand`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from tj_core.extend import PLAIN_CONTEXT, CannotExpandError, Context, leaves

from tj_torch.ops.errors import (
    CannotExpand,
    ExpansionError,
    InternalError,
    MakesSubclass,
    internal_error,
)
from tj_torch.ops.expansion.arguments import distinct_proxies, mentions_missing_device
from tj_torch.ops.expansion.kinds import Kinds, TensorKind, class_name, names_in
from tj_torch.ops.expansion.recorder import NeedsPythonDispatcher
from tj_torch.ops.expansion.run import Run
from tj_torch.ops.facts.denials import Denied, rules
from tj_torch.ops.facts.operators import OpTable
from tj_torch.ops.facts.schema_effects import extension
from tj_torch.ops.fakes.modes import fake_mode
from tj_torch.ops.sizes.program import Sizes, is_sized
from tj_torch.runtime.subclasses import is_wrapper_class
from tj_torch.torch_private import ops as private

if TYPE_CHECKING:
    from tj_torch.ops.expansion.expansion import Expansion

__all__ = ["Expander", "expand", "generators_untouched"]

T = TypeVar("T")


class Expander:
    """Expander of calls; a session has one, with the mode of all its fake tensors.

    ``denied`` are functions that must not run on fake tensors, ``kinds`` the plugins' records of
    tensor subclasses, ``makers`` functions that make a tensor subclass from plain tensors, with it.
    """

    __slots__ = ("_mode", "_table", "_usable", "denied", "kinds", "makers")

    def __init__(self, denied: Denied | None = None, kinds: Kinds | None = None) -> None:
        self.denied = denied or Denied(rules())
        self.kinds = kinds or Kinds()
        self.makers: dict[Callable[..., Any], type] = {}
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
        :raises NoTensorKind: if a tensor subclass is in it that no plugin handles.
        :raises ExpansionError: if PyTorch raises for these arguments, from PyTorch's error.
        :raises InternalError: for a bug of tj itself, after a warning.
        """
        return self.run(_expansion, fn, args, kwargs, context, sizes)

    def run(
        self,
        work: Callable[[Run, TensorKind | None], T],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | Iterable[tuple[str, Any]],
        context: Context,
        sizes: Sizes | None = None,
        *,
        beside: Iterable[Any] = (),
    ) -> T:
        """Result of ``work`` on a run of the call, repeated with other settings where needed.

        ``work`` also gets the kind of the tensor subclasses in the call. Arguments and errors as in
        `expand`; ``beside`` are values that may be of subclasses, too, such as tangents.
        """
        reason = self.denied.reason(fn)
        if reason is not None:
            raise CannotExpand(reason)
        tree = (tuple(args), dict(kwargs))
        arguments = distinct_proxies(tree)
        self._mode = self._mode or fake_mode()
        kind = self.kinds.among([*names_in((*leaves(tree), *beside)), *self._made_by(fn)])
        given = self._mode, self._table, self.denied, fn, tree, arguments, context, sizes or Sizes()
        run = Run(*given) if kind is None else kind.run(Run(*given))
        if mentions_missing_device(fn, tree, self.usable):
            run.autograd = False
        if any(is_sized(a.proxy) for a in arguments.values()):
            run.make_symbolic()
            run.decompose = bool(run.symbols)  # kernels in C++ may ask for concrete sizes
        try:
            with generators_untouched(), private.quiet():
                return self._attempt(run, kind, work)
        except InternalError as error:
            error.warn()
            raise

    def _made_by(self, fn: Callable[..., Any]) -> Iterator[str]:
        """Yield the name of the tensor subclass that ``fn`` is known to make."""
        made = fn if is_wrapper_class(fn) else self.makers.get(fn)
        if isinstance(made, type):
            yield class_name(made)

    def _attempt(
        self, run: Run, kind: TensorKind | None, work: Callable[[Run, TensorKind | None], T]
    ) -> T:
        """Call ``work``; on an error that other settings can avoid, change them and try again."""
        try:
            return work(run, kind)
        except MakesSubclass as made:
            kind = self.kinds.named(class_name(made.kind))
            return self._attempt(kind.run(run), kind, work)
        except NeedsPythonDispatcher:
            run.decompose = True
            run.again()
            return self._attempt(run, kind, work)
        except private.data_dependent() as error:
            if run.symbolic is not None:
                raise _classified(run, error) from error
            run.make_symbolic()
            return self._attempt(run, kind, work)
        except RuntimeError as error:
            if run.nonleaf or "leaf Variable that requires grad" not in str(error):
                raise _classified(run, error) from error
            run.nonleaf = True
            run.again()
            return self._attempt(run, kind, work)
        except CannotExpandError:
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


def _expansion(run: Run, kind: TensorKind | None) -> Expansion:
    by_schema = kind is None and extension(run.fn) is not None
    return run.by_schema() if by_schema else run.expansion()


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
    folder = str(Path(inspect.getfile(type(run))).parent)  # of the plugin whose kind of run it is
    if internal := internal_error(error, getattr(run.fn, "__name__", repr(run.fn)), folder):
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
