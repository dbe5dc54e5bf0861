"""States of executors' calls in programs that are written to files, and read from them.

A state has no text: a file leaves it out, and a program that was read gets a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tj_core.contract.executors import state_keepers
from tj_core.edit.editor import TraceEditor
from tj_core.errors import PackageError
from tj_core.ir.symbol import Constant, Symbol

if TYPE_CHECKING:
    from tj_core.contract.executors import Executor
    from tj_core.ir.trace import BoundSymbol, Trace

__all__ = ["with_states", "without_states"]


def without_states(trace: Trace) -> Trace:
    """``trace`` without the states of executors' calls; those in subprograms stay."""
    return _with_calls(trace, lambda call: call.replace(kwargs=_stateless(call)))


def with_states(trace: Trace, executors: Mapping[str, Executor]) -> Trace:
    """``trace``, which was read, with a new state for each call that had one.

    :raises PackageError: if the executor's claim makes none now.
    """

    def stated(call: BoundSymbol) -> BoundSymbol:
        assert call.executor is not None
        rule = executors[call.executor].claims.get(Symbol.parse(call.symbol.path))
        if rule is None or rule.value.state is None:
            raise PackageError(f"nothing makes the state of {call.symbol}")
        state = Constant(f"_state_{call.label}", rule.value.state(call), named=False)
        return call.replace(kwargs=(*call.kwargs, ("state", state)))

    return _with_calls(trace, stated)


def _with_calls(trace: Trace, change: Callable[[BoundSymbol], BoundSymbol]) -> Trace:
    """``trace`` with each call that has a state changed."""
    editor = TraceEditor(trace)
    for call in trace.calls:
        editor.append(change(call) if call.executor in state_keepers(call) else call)
    return editor.done()


def _stateless(call: BoundSymbol) -> tuple[tuple[str, Any], ...]:
    return tuple((name, value) for name, value in call.kwargs if name != "state")
