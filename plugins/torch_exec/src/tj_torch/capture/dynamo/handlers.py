"""Handlers of the program's, a captured graph has none: graph breaks at calls that could need them.

A graph runs as a whole, before what Dynamo makes of the rest of the program. An error that only
real data causes leaves from there, past every ``except`` and ``__exit__`` around it.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FunctionType
from typing import Any

import torch

from tj_torch.capture.dynamo.patches import has, is_pytorchs, leave_frames, replace, stop
from tj_torch.capture.dynamo.quiet import may_raise_on_data
from tj_torch.torch_private.runtime import TorchDispatchMode, pytree

__all__ = ["Handlers", "leave_handled_calls"]

_TABLES = sys.version_info >= (3, 11)
"""A Python whose handlers are in a table, and not on a stack of blocks."""

_OWN = ("torch.", "tj_core", "tj_torch", "_operator")
"""Where functions are from that raise by the operators that they call, if at all."""


class Handlers:
    """The handlers of the program's around the instruction that Dynamo is at.

    ``modes`` are those that only set one of PyTorch's modes back: a graph leaves none changed.
    """

    def __init__(self) -> None:
        self.modes: dict[int, Any] = {}

    def enter(self, tx: Any, context: Any, instruction: Any) -> None:
        """Note that ``tx`` begins a ``with`` statement, at ``instruction``, for ``context``."""
        if _is_mode(context):
            target = instruction.target
            if _TABLES and tx.next_instruction.exn_tab_entry is not None:
                target = tx.next_instruction.exn_tab_entry.target
            self.modes[id(target)] = target

    def around(self, tx: Any) -> bool:
        """Tell whether the program would see what an instruction raises that ``tx`` is at."""
        while tx is not None:
            targets = _targets(tx) if not is_pytorchs(tx.f_code) else ()
            if any(id(t) not in self.modes and _may_catch(tx, t) for t in targets):
                return True
            tx = getattr(tx, "parent", None)
        return False


def leave_handled_calls(stack: ExitStack) -> Handlers:
    """Break the graph at a call that may raise when it runs, where the program has a handler.

    Where this Dynamo does not run calls as it is known to, any function with a handler is left.
    """
    from tj_torch.torch_private.dynamo import symbolic_convert, utils

    handlers = Handlers()
    base = symbolic_convert.InstructionTranslatorBase
    if has(base, "enter_ctx"):  # else each context counts as one of the program's
        replace(stack, base, "enter_ctx", _noting(handlers))
    if has(utils, "run_node"):
        replace(stack, utils, "run_node", _watching(handlers))
    else:
        leave_frames(
            stack,
            _begins_handler,
            "handles what calls in it may raise, and this PyTorch captures otherwise",
        )
    return handlers


def _noting(handlers: Handlers) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def enter_ctx(self: Any, context: Any, instruction: Any, *rest: Any) -> Any:
            handlers.enter(self, context, instruction)
            return original(self, context, instruction, *rest)

        return enter_ctx

    return noting


def _watching(handlers: Handlers) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def watching(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_node(tracer: Any, node: torch.fx.Node, *rest: Any) -> Any:
            if not handlers.around(tracer.current_tx):
                return original(tracer, node, *rest)
            target = node.target
            if isinstance(target, FunctionType) and not target.__module__.startswith(_OWN):
                _leave(target.__qualname__)
            with _Watching():
                return original(tracer, node, *rest)

        return run_node

    return watching


def _targets(tx: Any) -> Iterator[Any]:
    """Where the program goes on if the instruction that ``tx`` is at raises, from inside out."""
    if not _TABLES:
        yield from (b.target for b in tx.block_stack if b.target is not None)
        return
    entry = tx.current_instruction.exn_tab_entry
    while entry is not None:
        if entry.target.opname == "PUSH_EXC_INFO":  # else the end of a handler
            yield entry.target
        entry = entry.target.exn_tab_entry


_RAISED = (RuntimeError, IndexError, ValueError, AssertionError)
"""The classes of errors that operators raise for data, or base classes of them."""

_LOADS = frozenset({"DUP_TOP", "LOAD_GLOBAL", "LOAD_NAME", "BUILD_TUPLE"})
_CHECKS = frozenset({"CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH"})
_TAKES_ALL = frozenset({"POP_TOP", "WITH_EXCEPT_START"})


def _may_catch(tx: Any, target: Any) -> bool:
    """Tell whether the handler at ``target`` may end an error that data causes.

    A ``finally`` never does. What it does for an error is as little seen as what the program did
    before: a graph that raises leaves nothing of either.
    """
    here = tx.indexof[target] + (1 if _TABLES else 0)
    while True:
        names = []
        while (found := tx.instructions[here]).opname in _LOADS:
            names += [found.argval] if found.opname.startswith("LOAD") else []
            here += 1
        if found.opname not in _CHECKS:
            # The end of all clauses, the body of a `finally`, or a class that is not just a name.
            return found.opname in _TAKES_ALL or (bool(names) and _is_checked(tx, here))
        if any(_is_raised(tx.f_globals.get(name, vars(builtins).get(name))) for name in names):
            return True
        jump = found if found.opname.startswith("JUMP") else tx.instructions[here + 1]
        here = tx.indexof[jump.target]


def _is_checked(tx: Any, here: int) -> bool:
    """Tell whether what is loaded before ``here`` is a class that an error is held against."""
    following = (i.opname for i in tx.instructions[here : here + 8])
    return any(name in _CHECKS for name in following)


def _is_raised(kind: Any) -> bool:
    """Tell whether ``except kind`` may have to do with an error that data causes.

    Of Python's own classes, operators raise no subclass for data: transformers' caches handle
    ``NotImplementedError``, for devices that lack a kernel.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(not isinstance(k, type) or _catches(k) for k in kinds)


def _catches(kind: type) -> bool:
    of_python = kind.__module__ == "builtins"
    return any(issubclass(r, kind) for r in _RAISED) or (
        not of_python and issubclass(kind, _RAISED)
    )


def _is_mode(context: Any) -> bool:
    """Tell whether a context is one of PyTorch's that Dynamo knows, of modes or for profiles."""
    from tj_torch.torch_private.dynamo import ctx_manager

    profiled = getattr(ctx_manager, "RecordFunctionVariable", ())
    return isinstance(context, (ctx_manager.ContextWrappingVariable, profiled))


class _Watching(TorchDispatchMode):
    """While one call runs on fake tensors: a graph break if it may raise on real ones."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if may_raise_on_data(func, pytree.tree_leaves((args, kwargs))):
            _leave(str(func))
        return func(*args, **kwargs)


def _leave(what: str) -> None:
    stop(f"{what} may raise when it runs, and the program handles that")


def _begins_handler(instruction: Any) -> bool:
    return instruction.opname in ("PUSH_EXC_INFO", "SETUP_FINALLY", "SETUP_WITH")
