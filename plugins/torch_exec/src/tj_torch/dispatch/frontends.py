"""Frontends that tj-torch registers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tj_core import jit
from tj_core.extend import ConfigError, Frontend, Jitted, TjError
from tj_core.internal import callable_html

from tj_torch.capture.dynamo.adapter import inlined_as
from tj_torch.capture.dynamo.foundations import essential_missing
from tj_torch.dispatch.autocast import autocasting
from tj_torch.dispatch.behind import states_behind
from tj_torch.dispatch.compiler import GraphCompiler
from tj_torch.dispatch.dispatcher import Dispatcher, Programs
from tj_torch.dispatch.dynamo import DynamoPrograms
from tj_torch.dispatch.fallbacks import fall_back_from
from tj_torch.dispatch.fx import FxPrograms, graph_module, is_exported
from tj_torch.dispatch.module import wrap_module
from tj_torch.dispatch.wrappers import MODULE_WRAPPERS, inner_attribute, wrap_around
from tj_torch.ops.service import TorchDialects

if TYPE_CHECKING:
    from tj_core.extend import CaptureError

    from tj_torch.dispatch.module import Dispatching

__all__ = ["frontends"]


def frontends(probe: bool = False) -> tuple[Frontend, ...]:
    """Make the frontends ``dynamo``, ``dynamo_hook`` and ``fx`` for the session's option ``probe``.

    ``dynamo``, the default, captures whole programs and dispatches calls itself; at a graph break
    it turns to ``dynamo_hook``, which compiles the program's parts through PyTorch's eval-frame
    hook. ``fx`` takes graphs; it is the frontend of an ExportedProgram, which is not callable.
    """
    return (
        Frontend("fx", is_exported, _fx, priority=20),
        Frontend("dynamo", callable, partial(_wrap, True, probe), 10, states_behind),
        Frontend("dynamo_hook", callable, partial(_wrap, False, probe)),
    )


def _fx(program: Any, jitted: Jitted) -> Any:
    _compiles_in_calls(jitted, "fx", "tj.jit(program.module()) takes a program that is exported")
    jitted.fn = module = graph_module(program)
    # Copies are graphs as well; without `frontend=` the default frontend would take them.
    same = ("executors", "transforms", "autocast", "dynamic", "fullgraph", "compile")
    kept = {k: jitted.arguments[k] for k in same}
    jitted.again = lambda other: jit(other, frontend="fx", session=jitted.session, **kept)
    jitted.arguments = {**jitted.arguments, "frontend": "fx"}
    dispatcher = autocasting(_dispatching(module, jitted, lambda: FxPrograms(module)))
    return wrap_module(module, dispatcher, {"recompile": _recompile})


def _compiles_in_calls(jitted: Jitted, frontend: str, why: str) -> None:
    """Check that programs of ``frontend`` are not to be compiled behind their calls.

    :raises ConfigError: if they are.
    """
    if jitted.on_miss == "eager":
        raise ConfigError(
            f'on_miss="eager" needs the frontend dynamo: {frontend} compiles in calls', hint=why
        )


def _recompile(self: Any) -> Any:
    """Recompile the wrapped module: ``recompile`` sets ``forward`` of the module's own class."""
    return self.__tj__.fn.recompile()


def _wrap(whole: bool, probe: bool, fn: Any, jitted: Jitted) -> Any:
    if is_exported(fn):
        raise TjError(
            "an ExportedProgram is no Python that can be captured",
            hint='tj.jit(program, frontend="fx"), or tj.jit(program.module(), ...)',
        )
    if not whole:
        _compiles_in_calls(jitted, "dynamo_hook", "PyTorch's hook compiles what is called")
    attribute = inner_attribute(fn, jitted.session.tables[MODULE_WRAPPERS])
    inner = fn if attribute is None else getattr(fn, attribute)
    made = autocasting(_dispatching(inner, jitted, lambda: DynamoPrograms(inner, whole), probe))
    if attribute is not None:
        return wrap_around(fn, attribute, made)
    return wrap_module(fn, made) if isinstance(fn, torch.nn.Module) else _wrap_function(fn, made)


def _dispatching(
    fn: Any, jitted: Jitted, programs: Callable[[], Programs[Any]], probe: bool = False
) -> Dispatching:
    """Dispatcher of ``fn``. In a PyTorch that tj cannot use, it runs ``fn`` itself."""
    if error := essential_missing():
        return Uncompiled(jitted, fn, error)
    compiler = GraphCompiler(jitted, TorchDialects.of(jitted.session), probe)
    return Dispatcher(jitted, compiler, programs())


def _wrap_function(fn: Callable[..., Any], dispatcher: Dispatching) -> Any:
    """``fn`` jitted: a function with the same name, signature and documentation."""
    call = dispatcher.take_call()
    if hasattr(fn, "__name__"):
        functools.update_wrapper(call, fn)
    call.__tj__ = dispatcher.jitted  # type: ignore[attr-defined]
    call._repr_html_ = partial(callable_html, dispatcher.jitted)  # type: ignore[attr-defined]
    return call


@dataclass(slots=True)
class Uncompiled:
    """Dispatcher of a program that is never captured, because of ``error``."""

    jitted: Jitted
    program: Callable[..., Any]
    error: CaptureError

    def take_call(self) -> Callable[..., Any]:
        """Make the callable, which warns once and runs the program."""
        jitted, program, error = self.jitted, self.program, self.error

        def call(*args: Any, **kwargs: Any) -> Any:
            fall_back_from(jitted, error)
            return program(*args, **kwargs)

        return inlined_as(call, program)
