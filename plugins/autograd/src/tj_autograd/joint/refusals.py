"""Programs that JOINT declines: they run as acquired, under PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from tj_core.extend import (
    BoundSymbol,
    Decline,
    Proxy,
    TensorProxy,
    Trace,
    is_subclass,
    leaves,
    requires_grad,
)
from tj_core.internal import AUGMENTED
from tj_torch.extend import is_on, is_wrapper_class, may_write, resolve
from tj_torch.internal import (
    INFERENCE,
    OVERWRITTEN,
    RETURNED_VIEW,
    changes_unseen,
    members,
    strided_beyond,
)

from tj_autograd.joint.functions import APPLY, has_own_backward
from tj_autograd.joint.segments import Cut, carries, is_returned_view, user_of_overwritten

__all__ = ["needs_gradient", "recorded_alone", "refused_by_autograd", "unsupported"]


def needs_gradient(trace: Trace) -> bool:
    """Check that a call makes a value that requires grad, or
    rebinds an argument to such a value.
    """
    return any(requires_grad(p) for call in trace.calls for p in _made(call))


def _made(call: BoundSymbol) -> Iterator[Proxy]:
    yield from call.flat_outs
    for _, p in call.effects.rebinds:
        yield p


def unsupported(trace: Trace) -> Decline | None:
    """Reason why JOINT declines ``trace``, which needs a gradient; None if it does not.

    `uncuttable` does the same for its segments.
    """
    if trace.context.get("grad") is False:
        return Decline("gradients are off where it is called, and on inside")
    if beyond := strided_beyond(trace, members(trace)):
        reason, call = beyond
        return Decline(reason, call.source)
    returned = _returned(trace)
    for call in trace.calls:
        for reason, applies in _REASONS.items():
            if applies(call):
                return Decline(f"{call.symbol} {reason}", call.source)
        views = [a for a in call.effects.aliases if not a.identical]
        if any(_is_unseen(call.flat_outs[a.output], returned) for a in views):
            return Decline(f"a view, made by {call.symbol}, is returned", call.source)
    return None


def recorded_alone(trace: Trace, records: Callable[[BoundSymbol], bool]) -> Decline | None:
    """Reason to leave ``trace`` to PyTorch's autograd, which ``records`` each call that carries a
    gradient: then a node of tj's would only add time. None if another call carries one.
    """
    calls = [call for call in trace.calls if carries(call)]
    if not calls or not all(map(records, calls)):
        return None
    return Decline("PyTorch's autograd has to record all calls with gradients", calls[0].source)


def _returned(trace: Trace) -> set[str]:
    return {p.name for p in leaves(trace.outputs) if isinstance(p, TensorProxy)}


def uncuttable(trace: Trace, cut: Cut) -> Decline | None:
    """Reason why ``trace`` cannot be differentiated by the segments of ``cut``; None if it can."""
    if found := _leading_nowhere(trace, _returned(trace), cut):
        return found
    return _unseen_inside(trace, cut) if any(map(is_returned_view, trace.calls)) else None


def _unseen_inside(trace: Trace, cut: Cut) -> Decline | None:
    """Reason why a view or a write that autograd has to see cannot be run between two nodes."""
    if cut.whole:
        return Decline("a returned view, on which others depend, is one with another result")
    user = user_of_overwritten(trace, cut)
    if user is None:
        return None
    reason = "what an argument was is used beside what it is, on which a result depends"
    return Decline(reason, user.source)


def _leading_nowhere(trace: Trace, returned: Container[str], cut: Cut) -> Decline | None:
    """Reason why a gradient would end at a view made under ``no_grad``; None if there is none.

    A view requires grad iff its base does, under ``no_grad`` too, but no gradient passes through
    it. Autograd still runs users' backwards on the way to it.
    """
    call = next(filter(_makes_leaf_view, trace.calls), None)
    if call is None:
        return None
    if any(map(has_own_backward, trace.calls)):
        return Decline("a user's backward may lead to a view made without gradients", call.source)
    if any(p.name in returned for p in call.flat_outs) and not cut.whole:
        return Decline("a result depends on a view made without gradients", call.source)
    return None


def _makes_leaf_view(call: BoundSymbol) -> bool:
    """Check that ``call`` makes a view that requires grad while grad mode is off."""
    if call.context.get("grad") is not False:
        return False
    views = (a for a in call.effects.aliases if not a.identical)
    return any(requires_grad(call.flat_outs[a.output]) for a in views)


def _is_unseen(view: Proxy, returned: Container[str]) -> bool:
    """Check that ``view`` is returned and autograd will not see it made."""
    return view.name in returned and RETURNED_VIEW.name not in view.tags


def refused_by_autograd(joint: Trace) -> Decline | None:
    """Reason why PyTorch's autograd would refuse these gradients; None if it would not.

    A backward call takes a value of the forward whose memory the acquired program writes to later,
    or one that was made in inference mode.
    """
    held: set[str] = set()
    for call in joint.calls:
        held |= _held(call)
        tagged = (OVERWRITTEN.name in p.tags or p.name in held for p in call.flat_args)
        if "BACKWARD" in call.tags and any(tagged):
            return Decline("a value that a gradient needs is written to later", call.source)
        if "BACKWARD" in call.tags and any(INFERENCE.name in p.tags for p in call.flat_args):
            return Decline("a gradient needs a tensor of inference mode", call.source)
    return None


def _held(call: BoundSymbol) -> set[str]:
    """Names of values that ``call`` saves and that an overwritten tensor subclass holds."""
    if call.symbol.variant != AUGMENTED or not call.on_subclass:
        return set()
    values = {"arg": call.flat_args, "out": call.flat_outs}
    shared = ((a, values[a.kind][a.index]) for a in call.effects.aliases if a.kind in values)
    return {
        call.flat_outs[a.output].name
        for a, whole in shared
        if is_subclass(whole) and OVERWRITTEN.name in whole.tags
    }


def _writes_back(call: BoundSymbol) -> bool:
    """Test for a Function whose backward writes to its arguments, which its caller may see."""
    return call.symbol.qualname == APPLY and "side_effect" in call.effects.ordered


def _not_strided(call: BoundSymbol) -> bool:
    """Test for a tensor that is not strided: its gradients may not be either, and sums of them
    cannot be expanded.
    """
    tensors = (p for p in (*call.flat_args, *call.flat_outs) if isinstance(p, TensorProxy))
    return any(p.layout != "strided" and p.subclass is None for p in tensors)


def _makes_leaf(call: BoundSymbol) -> bool:
    """Test for a tensor subclass that is made of tensors which require grad.

    The subclass requires grad then, but autograd sees no path from it to them.
    """
    if not any(map(requires_grad, call.flat_args)) or not call.on_subclass:
        return False
    return is_wrapper_class(resolve(call.symbol))


def _cast_subclass(call: BoundSymbol) -> bool:
    """Test for a tensor subclass under autocast, whose cached casts are not modelled."""
    return call.on_subclass and is_on(call.context) and any(map(requires_grad, call.flat_outs))


_REASONS: dict[str, Callable[[BoundSymbol], object]] = {
    "writes to an argument": lambda call: call.effects.mutates,
    "changes the metadata of an argument": lambda call: call.effects.rebinds,
    "changes an argument, and does not say how": changes_unseen,
    "may write to what it is given": may_write,
    "takes or makes a tensor without strides": _not_strided,
    "writes in its backward": _writes_back,
    "makes a tensor subclass of tensors that require gradients": _makes_leaf,
    "is given a tensor subclass under autocast": _cast_subclass,
}
"""Reasons for a decline, with the test that each applies to a call."""
