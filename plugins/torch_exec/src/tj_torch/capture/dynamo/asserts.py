"""Make assertions on data, ``assert (x > 0).all()``, raise in captured graphs as in Python.

Dynamo replaces them by ``torch._assert_async``, which raises another error, or, on a GPU, makes the
CUDA context unusable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.changes import has_changed
from tj_torch.capture.dynamo.patches import stop
from tj_torch.capture.dynamo.refused_data import RAISES
from tj_torch.capture.dynamo.settings import with_settings
from tj_torch.runtime.checks import asserted
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.capture.dynamo.handlers import Handlers
    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["keep_assertions"]

_SETTING = "rewrite_assert_with_torch_assert"


@dataclass(slots=True)
class _Statement:
    """Assertion being traced: the frame, the instruction's index, and the message."""

    frame: Any = None
    at: int | None = None
    message: tuple[str, ...] = field(default=())

    def begin(self, frame: Any, message: tuple[str, ...]) -> None:
        """Set the assertion to the one before the next instruction of ``frame``."""
        self.frame, self.at, self.message = frame, frame.instruction_pointer, message

    def is_current(self) -> bool:
        """Test if Dynamo is still at this assertion."""
        return self.frame is not None and self.frame.instruction_pointer == self.at


def keep_assertions(stack: ExitStack, handlers: Handlers, noticed: Observations) -> None:
    """Record assertions as calls that raise ``AssertionError`` with the user's message.

    Where a handler of the program may catch the error, or where the program has changed objects
    before, which Dynamo does after the graph, the program runs as it is for data that are not as
    asserted, if it can; else the graph breaks. Where Dynamo lacks the names used here, it breaks at
    any assertion on data.
    """
    from torch.fx.experimental import symbolic_shapes

    from tj_torch.torch_private.dynamo import OutputGraph, dynamo, symbolic_convert

    _leave_asserting_functions(stack)
    named = has(symbolic_convert, "_detect_and_normalize_assert_statement")
    if not (named and has(OutputGraph, "create_proxy") and has(symbolic_shapes, "expect_true")):
        if hasattr(dynamo.config, _SETTING):
            stack.enter_context(with_settings({_SETTING: False}))
        return
    statement = _Statement()
    replace(
        stack,
        symbolic_convert,
        "_detect_and_normalize_assert_statement",
        _noting(statement, handlers, noticed),
    )
    replace(stack, OutputGraph, "create_proxy", _recording(statement))
    replace(stack, symbolic_shapes, "expect_true", _refusing(statement))


def _leave_asserting_functions(stack: ExitStack) -> None:
    """Break the graph at ``torch._assert`` of a tensor.

    From 2.15 on, Dynamo replaces it by ``torch._assert_async``, too.
    """
    from tj_torch.torch_private.dynamo import TorchInGraphFunctionVariable, _assert

    handlers = TorchInGraphFunctionVariable._get_handlers()
    if _assert in handlers:
        stack.callback(handlers.__setitem__, _assert, handlers.pop(_assert))


def _noting(
    statement: _Statement, handlers: Handlers, noticed: Observations
) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    def noting(original: Callable[..., bool]) -> Callable[..., bool]:
        def detect(tx: Any, *jump: Any) -> bool:
            statement.frame = None
            if not original(tx, *jump):
                return False
            message = _message(tx)
            if message is None or handlers.around(tx) or has_changed(tx.output.side_effects):
                if not noticed.defer(tx, RAISES):
                    tx.pop()
                    return False
                message = ()
            statement.begin(tx, message)
            return True

        return detect

    return noting


def _message(tx: Any) -> tuple[str, ...] | None:
    """Arguments of the error; None if the message is no string, which a graph cannot hold.

    Dynamo has just pushed the message on the stack, its own if the user gave none.
    """
    at = tx.instruction_pointer
    while tx.instructions[at].opname == "NOT_TAKEN":  # after a jump, from Python 3.14 on
        at += 1
    if tx.instructions[at + 1].opname == "RAISE_VARARGS":
        return ()
    text = tx.stack[-1].as_python_constant()
    return (text,) if isinstance(text, str) else None


def _recording(statement: _Statement) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    from tj_torch.torch_private.dynamo import _assert_async

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def create_proxy(
            self: Any, kind: str, target: Any, args: Any, *rest: Any, **more: Any
        ) -> Any:
            # The program may call `torch._assert_async` itself, which stays as it is.
            if target is _assert_async and statement.is_current():
                target, args = asserted, (args[0], *statement.message)
            return original(self, kind, target, args, *rest, **more)

        return create_proxy

    return recording


def _refusing(statement: _Statement) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Break the graph at assertions on unbacked numbers, for which Dynamo has its own operator."""

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

        def expect_true(condition: Any, *args: Any, **kwargs: Any) -> Any:
            if statement.is_current() and free_unbacked_symbols(condition):
                stop("an assertion on a number that depends on data")
            return original(condition, *args, **kwargs)

        return expect_true

    return refusing
