"""Calls that may raise inside of the program's exception handlers.

A graph runs as a whole, before the rest of the program's code, and has no handlers. An error that
only real data cause would bypass every ``except`` and ``__exit__`` around the call. So the program
runs as it is for such data, if it can: see `tj_torch.dispatch.changed_objects`. Otherwise the graph
breaks at the call.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from tj_torch.capture.dynamo.kernel_trials import is_refused
from tj_torch.capture.dynamo.patches import is_pytorchs, leave_frames, stop
from tj_torch.capture.dynamo.quiet import may_raise_on_data, writes_elements_twice
from tj_torch.capture.handled_calls import note_handled
from tj_torch.torch_private.replacement import has, replace
from tj_torch.torch_private.runtime import TorchDispatchMode, pytree

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["Handlers", "leave_handled_calls"]

_TABLES = sys.version_info >= (3, 11)
"""True if this Python has its handlers in a table, and not on a stack of blocks."""

_OWN = ("torch.", "tj_core", "tj_torch", "_operator")
"""Modules of functions that raise only through the operators that they call."""


class Handlers:
    """Handlers of the program around the current instruction.

    ``modes`` are handlers that only restore a mode of PyTorch, which a graph leaves unchanged.
    """

    def __init__(self) -> None:
        self.modes: dict[int, Any] = {}

    def enter(self, tx: Any, context: Any, instruction: Any) -> None:
        """Note a ``with`` statement for ``context``, which begins at ``instruction`` of ``tx``."""
        if _is_mode(context):
            target = instruction.target
            # From Python 3.11 on the block has its handler in the table of exceptions, and
            # `next_instruction` is its first one.
            if _TABLES and tx.next_instruction.exn_tab_entry is not None:
                target = tx.next_instruction.exn_tab_entry.target
            # Kept, so that no other instruction gets its id.
            self.modes[id(target)] = target

    def around(self, tx: Any, raised: tuple[type, ...] | None = None) -> bool:
        """Test if a handler of the program may catch an error of ``tx``'s current instruction.

        ``raised`` are classes of such errors; by default those that operators raise for data.
        """
        while tx is not None:
            targets = _targets(tx) if not is_pytorchs(tx.f_code) else ()
            if any(
                id(t) not in self.modes and _may_catch(tx, t, raised or _RAISED) for t in targets
            ):
                return True
            # The caller that the function is inlined in, whose handlers catch its errors.
            tx = getattr(tx, "parent", None)
        return False


def leave_handled_calls(stack: ExitStack, noticed: Observations) -> Handlers:
    """Leave calls that may raise at run time inside of a handler to the program as it is.

    Where Dynamo lacks the names used here, functions with handlers are not captured.
    """
    from tj_torch.torch_private.dynamo import TensorVariable, symbolic_convert, utils

    handlers = Handlers()
    writes = vars(TensorVariable).get("method___setitem__")
    if writes is not None and "tx" not in inspect.signature(writes).parameters:  # 2.10
        replace(stack, TensorVariable, "method___setitem__", _running(handlers))
    base = symbolic_convert.InstructionTranslatorBase
    if has(base, "enter_ctx"):  # else all contexts count as the program's
        replace(stack, base, "enter_ctx", _noting(handlers))
    if has(utils, "run_node"):
        replace(stack, utils, "run_node", _watching(handlers, noticed))
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


def _watching(
    handlers: Handlers, noticed: Observations
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def watching(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_node(tracer: Any, node: torch.fx.Node, args: Any, *rest: Any) -> Any:
            if _may_divide_by_zero(node.target, args) and handlers.around(
                tracer.current_tx, (ZeroDivisionError,)
            ):
                _leave("a division by a number that may be zero")
            if not handlers.around(tracer.current_tx):
                return original(tracer, node, args, *rest)
            target = node.target
            if isinstance(target, FunctionType) and not target.__module__.startswith(_OWN):
                _leave(target.__qualname__)
            return _watched(lambda: original(tracer, node, args, *rest), tracer, node, noticed)

        return run_node

    return watching


def _watched(
    run: Callable[[], Any], tracer: Any, node: torch.fx.Node, noticed: Observations
) -> Any:
    """The result of ``run``, a call on fakes; the real call may raise in a handler.

    The graph breaks there, unless the program can run as it is for such data.
    """
    from tj_torch.torch_private.dynamo import exc

    def leave(what: str) -> None:
        if not noticed.defer(tracer.current_tx, f"{what}{_RAISES}"):
            _leave(what)

    env = tracer.shape_env
    asserted = env.num_deferred_runtime_asserts
    try:
        with _Watching() as watching:  # type: ignore[no-untyped-call]
            found = run()
    except exc.TorchDynamoException:
        raise
    except Exception:  # what the handler may be for
        _leave(str(node.target))
    if watching.raising is not None:
        leave(watching.raising)
        noticed.handled[node] = None
        note_handled(node)
    if env.num_deferred_runtime_asserts > asserted:  # sizes that depend on data must fit
        leave(str(node.target))
    return found


def _running(handlers: Handlers) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A write of a number runs on fake tensors, too: 2.10 runs writes of tensors only."""

    def running(original: Callable[..., Any]) -> Callable[..., Any]:
        from tj_torch.torch_private.dynamo import InstructionTranslator, utils

        def setitem(self: Any, key: Any, value: Any) -> Any:
            made, output = original(self, key, value), InstructionTranslator.current_tx().output
            if not value.is_tensor() and handlers.around(output.current_tx):
                node = next(iter(reversed(output.graph.nodes)))
                # The run is to see whether it raises: what it returns is no value of the graph.
                with output.shape_env.ignore_fresh_unbacked_symbols():
                    utils.get_fake_value(node, output.current_tx)
            return made

        return setitem

    return running


_QUOTIENTS = (operator.truediv, operator.floordiv, operator.mod)


def _may_divide_by_zero(target: Any, args: Any) -> bool:
    """Test for arithmetic of numbers that raises if one of them, a symbol, is zero."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if target not in (*_QUOTIENTS, operator.pow) or not all(map(_is_number, args)):
        return False
    # A negative power of zero raises, too.
    divisor = args[0] if target is operator.pow else args[1]
    return not statically_known_true(divisor != 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat)


def _targets(tx: Any) -> Iterator[Any]:
    """Targets of the handlers around ``tx``'s current instruction, innermost first."""
    if not _TABLES:
        yield from (b.target for b in tx.block_stack if b.target is not None)
        return
    entry = tx.current_instruction.exn_tab_entry
    while entry is not None:
        if entry.target.opname == "PUSH_EXC_INFO":  # else the end of a handler
            yield entry.target
        entry = entry.target.exn_tab_entry


_RAISED = (RuntimeError, IndexError, ValueError, AssertionError)
"""Classes of errors that operators raise for data, or base classes of these."""

_LOADS = frozenset({"DUP_TOP", "LOAD_GLOBAL", "LOAD_NAME", "BUILD_TUPLE"})
_CHECKS = frozenset({"CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH"})
_TAKES_ALL = frozenset({"POP_TOP", "WITH_EXCEPT_START"})


def _may_catch(tx: Any, target: Any, raised: tuple[type, ...]) -> bool:
    """Test if the handler at ``target`` may catch an error of one of the classes ``raised``.

    A ``finally`` does not. Its side effects do not count: a graph that raises leaves none of the
    program's side effects anyway.
    """
    # The handler begins with PUSH_EXC_INFO, which loads nothing.
    here = tx.indexof[target] + (1 if _TABLES else 0)
    while True:
        names = []
        while (found := tx.instructions[here]).opname in _LOADS:
            names += [found.argval] if found.opname.startswith("LOAD") else []
            here += 1
        if found.opname not in _CHECKS:
            # The end of all clauses, the body of a `finally`, or a class that is not just a name.
            return found.opname in _TAKES_ALL or (bool(names) and _is_checked(tx, here))
        found_kinds = (tx.f_globals.get(name, vars(builtins).get(name)) for name in names)
        if any(_is_raised(kind, raised) for kind in found_kinds):
            return True
        jump = found if found.opname.startswith("JUMP") else tx.instructions[here + 1]
        here = tx.indexof[jump.target]


def _is_checked(tx: Any, here: int) -> bool:
    """Test if the value loaded before ``here`` is a class that the error is matched against."""
    following = (i.opname for i in tx.instructions[here : here + 8])
    return any(name in _CHECKS for name in following)


def _is_raised(kind: Any, raised: tuple[type, ...]) -> bool:
    """Test if ``except kind`` may catch an error of one of the classes ``raised``.

    Operators raise no builtin subclass of the `_RAISED` ones for data; transformers' caches catch
    ``NotImplementedError``, for devices without a kernel.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    # A name of something else, unknown or computed, may stand for any class.
    return any(not isinstance(k, type) or _catches(k, raised) for k in kinds)


def _catches(kind: type, raised: tuple[type, ...]) -> bool:
    of_python = kind.__module__ == "builtins"
    return any(issubclass(r, kind) for r in raised) or (not of_python and issubclass(kind, raised))


def _is_mode(context: Any) -> bool:
    """Test for a context manager of a mode of PyTorch, or of the profiler."""
    from tj_torch.torch_private.dynamo import ctx_manager

    profiled = getattr(ctx_manager, "RecordFunctionVariable", ())
    return isinstance(context, (ctx_manager.ContextWrappingVariable, profiled))


class _Watching(TorchDispatchMode):
    """Mode for one call on fakes that notes in ``raising`` what may raise on real tensors.

    The graph breaks at calls that raise for all data, and at operators of extensions, which may do
    more than raise.
    """

    # Without it PyTorch raises for an operation such as `cond` under a mode (torch/_ops.py).
    supports_higher_order_operators = True

    raising: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if writes_elements_twice(func, args, kwargs):
            _leave(str(func))
        if may_raise_on_data(func, pytree.tree_leaves((args, kwargs))):
            if func.namespace != "aten":
                _leave(str(func))
            self.raising = str(func)
        elif is_refused(func, args, kwargs):
            _leave(str(func))
        return func(*args, **kwargs)


_RAISES = " may raise when it runs, and the program handles that"


def _leave(what: str) -> None:
    stop(f"{what}{_RAISES}")


def _begins_handler(instruction: Any) -> bool:
    return instruction.opname in ("PUSH_EXC_INFO", "SETUP_FINALLY", "SETUP_WITH")
