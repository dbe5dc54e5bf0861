"""The transform: calls that hand on state beside their results become one call.

An embedding whose words are split (`RowwiseParallel`) leaves a mask in the placement of its result,
which the redistribution of this result takes out again. Neither call can be expanded by itself,
since a run of it on fake tensors changes what the next call finds. Run together they leave nothing
behind; so the two have a body, and gradients, as one call.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Constant,
    PassRecord,
    Proxy,
    Stage,
    Symbol,
    TraceEditor,
    Transform,
    bind_outputs,
    is_subclass,
    leaves,
)
from tj_torch.extend import resolve
from tj_torch.internal import EARLIER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tj_core.extend import PassContext, Trace

__all__ = ["JOINED", "joining"]

JOINED = Symbol("tj", "joined")

_MOST = 4
"""Calls that become one, at most."""


def joining() -> Transform:
    """Make the transform; it comes first, since nothing is known of calls without a body."""
    return Transform("join-calls", _apply, Stage.ACQUIRED, priority=80, falls_back=True)


def _apply(trace: Trace, context: PassContext) -> Trace:
    if not any(map(_hands_on, trace.calls)):
        return trace
    readers: Counter[str] = Counter(p.name for call in trace.calls for p in call.flat_args)
    readers.update(p.name for p in leaves(trace.outputs) if isinstance(p, Proxy))
    editor = TraceEditor(trace, context.tags)
    waiting: list[BoundSymbol] = []  # calls kept last, each but the last read by the next alone
    for call in trace.calls:
        follows = bool(waiting) and _reads(call, waiting[-1])
        if follows and (made := _as_one([*waiting, call], context)) is not None:
            del editor.calls[-len(waiting) :]
            editor.append(made)
            editor.changed(call, f"joined with {waiting[-1].label}", context.plugin)
            waiting = []
            continue
        editor.append(call)
        if not follows:
            waiting = []
        alone = _hands_on(call) and readers[call.flat_outs[0].name] == 1
        waiting = [*waiting, call] if alone and len(waiting) < _MOST - 1 else []
    return editor.done(PassRecord(context.name, context.plugin)) if editor.changes else trace


def _hands_on(call: BoundSymbol) -> bool:
    """True for a call on a tensor subclass that returns one, and that has no expansion."""
    if call.body is not None or call.subprograms or len(call.flat_outs) != 1:
        return False
    (made,) = call.flat_outs
    return is_subclass(made) and not made.tags and any(map(is_subclass, call.flat_args))


def _reads(call: BoundSymbol, before: BoundSymbol) -> bool:
    """True if ``call`` has no expansion either, and takes what ``before`` returns."""
    (made,) = before.flat_outs
    given = [*call.args, *dict(call.kwargs).values()]
    direct = any(isinstance(arg, Proxy) and arg.name == made.name for arg in given)
    same = call.context == before.context and call.tags == before.tags
    return direct and same and call.body is None and not call.subprograms


def _as_one(calls: Sequence[BoundSymbol], context: PassContext) -> BoundSymbol | None:
    """The call of ``calls``, each of which takes the result of the one before.

    None if it cannot be expanded either, or is found to return something else.
    """
    last = calls[-1]
    earlier: set[str] = set()
    steps = []
    for call in calls:
        steps.append(_step(call, earlier))
        earlier = {p.name for p in call.flat_outs}
    made = last.replace(symbol=JOINED, args=tuple(steps), kwargs=())
    try:
        facts = context.expand.require(made).value(made)
    except CannotExpandError:
        return None
    names = [p.name for p in last.flat_outs]
    if len(names) != len([*leaves(facts.outputs)]):
        return None
    bound = bind_outputs(made, facts, names.__getitem__)
    same = zip(bound.flat_outs, last.flat_outs, strict=True)
    if any(a.replace(tags=b.tags) != b for a, b in same):
        return None
    return bound.replace(outputs=last.outputs)


def _step(call: BoundSymbol, earlier: set[str]) -> tuple[Any, ...]:
    """``call`` as an argument of ``tj.joined``; ``earlier`` is the name of what it is handed."""

    def argument(arg: Any) -> Any:
        known = isinstance(arg, Proxy) and arg.name in earlier
        return Constant("tj.EARLIER", EARLIER) if known else arg

    function = Constant(call.symbol.qualname, resolve(call.symbol))
    kwargs = {name: argument(arg) for name, arg in call.kwargs}
    return function, tuple(map(argument, call.args)), kwargs
