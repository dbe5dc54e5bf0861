"""Inline regions of `torch.utils.checkpoint`, with tags for what to recompute.

A captured checkpoint is one call with a region. While PyTorch's autograd takes the gradients, the
call stays, since only the call saves memory. Where no gradient is wanted, or a plugin takes the
gradients (it makes stage JOINT), the region is inlined; in the second case tags on its calls say
what the user asked to save and to recompute. Checkpoints that write to outer tensors are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tj_core.extend import (
    NO_TAGS,
    Body,
    BoundSymbol,
    CallEditor,
    CaptureError,
    Constant,
    NumberProxy,
    PassContext,
    Replacement,
    RuleTable,
    Stage,
    Tag,
    TagSet,
    TensorProxy,
    Trace,
    Transform,
    map_tree,
    requires_grad,
)
from torch.utils.checkpoint import (
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.expansion.arguments import make_fake
from tj_torch.ops.fakes.modes import fake_mode
from tj_torch.ops.naming.resolve import resolve
from tj_torch.ops.values.convert import to_torch

__all__ = ["CHECKPOINT", "STASH_RNG", "TAGS", "check_repeated", "inline_checkpoints"]

SYMBOL = "torch.utils.checkpoint.checkpoint"

CHECKPOINT = Tag(
    "CHECKPOINT",
    "the checkpointed region that the call is in: '1' is the second, '1.0' the first inside of it",
    carriers=frozenset({"call"}),
)
STASH_RNG = Tag(
    "STASH_RNG",
    "random calls of the checkpointed region draw the same numbers when they are recomputed",
    carriers=frozenset({"call"}),
)
TAGS = (CHECKPOINT, STASH_RNG)

RESIDUAL: Mapping[str, str] = {
    "MUST_SAVE": "SAVE",
    "PREFER_SAVE": "PREFER_SAVE",
    "MUST_RECOMPUTE": "RECOMPUTE",
    "PREFER_RECOMPUTE": "PREFER_RECOMPUTE",
    # tj does not offload saved values yet: they stay on their device.
    "MUST_CPU_OFFLOAD": "SAVE",
    "PREFER_CPU_OFFLOAD": "PREFER_SAVE",
}
"""Tag for an answer of a selective checkpoint policy, by the name in `CheckpointPolicy`."""


STRONGEST = ("SAVE", "PREFER_SAVE", "RECOMPUTE", "PREFER_RECOMPUTE")
"""Order of tags: a call whose operators get different answers has the first of these."""


def _apply(trace: Trace, context: PassContext) -> Trace:
    plain: RuleTable[Any] = RuleTable("checkpoint")
    plain.set(SYMBOL, _without_gradient)
    trace = _repeated(trace, lambda t: context.rewrite(t, plain, into_bodies=False))
    if Stage.JOINT not in context.produced:
        return trace
    tagging: RuleTable[Any] = RuleTable("checkpoint")
    tagging.set(SYMBOL, _Tagging())
    # In a region of another operation, PyTorch's autograd still takes the gradients.
    return _repeated(
        trace, lambda t: context.rewrite(t, tagging, into_bodies=False, into_subprograms=False)
    )


def inline_checkpoints() -> Transform:
    """Transform that inlines checkpointed regions, see the module."""
    return Transform("inline-checkpoints", _apply, Stage.ACQUIRED, priority=100, falls_back=True)


def _repeated(trace: Trace, step: Callable[[Trace], Trace]) -> Trace:
    """Repeat ``step`` until nothing changes: a region may hold further checkpoints."""
    while True:
        after = step(trace)
        if after is trace:
            return trace
        trace = after


def _context_fn(call: BoundSymbol) -> Any:
    constant = dict(call.kwargs).get("context_fn")
    return constant.value if isinstance(constant, Constant) else None


def _selective(context_fn: Any) -> bool:
    """Test for no ``context_fn``, or PyTorch's own contexts, which only save values."""
    made_by = context_fn.func if isinstance(context_fn, functools.partial) else None
    return context_fn is None or made_by is create_selective_checkpoint_contexts


def _without_gradient(call: BoundSymbol, edit: CallEditor) -> Replacement | None:
    wanted = any(map(requires_grad, call.flat_outs))
    if wanted or not (_selective(_context_fn(call)) or call.context.get("grad") is False):
        return None
    return edit.inline_subprogram()


@dataclass
class _Tagging:
    """Rule that inlines a checkpoint's region and tags its calls.

    ``counts`` are the numbers of regions so far, by the path of the region around them.
    """

    counts: dict[str, int] = field(default_factory=dict)

    def __call__(self, call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        context_fn = _context_fn(call)
        policy = None if context_fn is None else _policy_of(context_fn)
        if context_fn is not None and policy is None:
            return None  # the user's own contexts have to be entered around the region
        made = edit.inline_subprogram(self.tags(call))
        tagged = _vanilla if policy is None else _Policy(policy)
        calls = tuple(map(tagged, made.calls))
        return Replacement(calls, made.values, decomposed=True)

    def tags(self, call: BoundSymbol) -> TagSet:
        outer = call.tags.get("CHECKPOINT")
        path = "" if outer is None else f"{outer}."
        number = self.counts[path] = self.counts.get(path, -1) + 1
        found = NO_TAGS.add("CHECKPOINT", f"{path}{number}")
        stash = dict(call.kwargs).get("preserve_rng_state", True)
        return found.add("STASH_RNG") if stash else found


def _vanilla(call: BoundSymbol) -> BoundSymbol:
    return _with_residual(call, "RECOMPUTE")


def _with_residual(call: BoundSymbol, name: str) -> BoundSymbol:
    known = {*RESIDUAL.values(), "DONT_SAVE_FOR_BACKWARD"}
    # A tag of the user's says more than the checkpoint around it.
    return call if known & set(call.tags) else call.replace(tags=call.tags.add(name))


# ------------------------------------------------------------------------------- policies


def _policy_of(context_fn: Any) -> Any:
    """Policy function of selective checkpointing, None for other contexts."""
    forward, _ = context_fn()
    return getattr(forward, "policy_fn", None)


class _Policy:
    """Evaluate a policy on the operators of each call, in order, as a run of the region would.

    Arguments are fake tensors; a policy reads the operator, and perhaps shapes: those of the call
    that was traced.
    """

    def __init__(self, policy: Callable[..., Any]) -> None:
        self.policy = policy
        self.mode = fake_mode()

    def __call__(self, call: BoundSymbol) -> BoundSymbol:
        body = call.body
        if body is None or not body.calls:
            return _with_residual(call, "PREFER_RECOMPUTE")
        names = list(self.verdicts(body))
        if len(set(names)) == 1:
            return _with_residual(call, names[0])
        pairs = zip(body.calls, names, strict=True)
        inner = tuple(_with_residual(part, name) for part, name in pairs)
        made = call.replace(body=Body(body.inputs, inner, body.outputs, body.updates))
        return _with_residual(made, next(name for name in STRONGEST if name in names))

    def verdicts(self, body: Body) -> Iterator[str]:
        fakes: dict[str, Any] = {}

        def fake(p: Any) -> Any:
            if isinstance(p, NumberProxy):
                return _known(p.hint)
            if not isinstance(p, TensorProxy):
                return p
            if p.name not in fakes:
                # A policy changes what is saved, and no results: sizes are those of this call.
                dims = (d for d in (*p.shape, *p.strides) if not isinstance(d, int))
                sizes = {d.name: _known(d.hint) for d in dims}
                fakes[p.name] = make_fake(self.mode, p, sizes.__getitem__)
            return fakes[p.name]

        for part in body.calls:
            try:
                tree = (part.args, dict(part.kwargs), part.outputs)
                args, kwargs, out = to_torch(map_tree(fake, tree))
                yield self.verdict(resolve(part.symbol), out, args, kwargs)
            except (CannotExpand, LookupError):
                # As for calls without a verdict: PyTorch recomputes all that a policy does not
                # save.
                yield "PREFER_RECOMPUTE"

    def verdict(
        self, operator: Any, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        context = SelectiveCheckpointContext(is_recompute=False)
        context.op_output = out  # attribute of PyTorch's own context from 2.13 on
        answer = self.policy(context, operator, *args, **kwargs)
        # PyTorch takes a bool for a `CheckpointPolicy`, too (`_policy_from_bool`).
        if isinstance(answer, bool):
            return "SAVE" if answer else "PREFER_RECOMPUTE"
        return RESIDUAL[answer.name]


def _known(hint: Any) -> Any:
    """``hint``, the value of a number when it was traced.

    :raises CannotExpand: if it depends on data.
    """
    if hint is None:
        raise CannotExpand("a number that depends on data")
    return hint


def check_repeated(call: BoundSymbol) -> None:
    """Check that ``call``, if it is a checkpoint with gradients, writes to none of its arguments.

    In eager the backward's recomputation writes a second time; a functional program writes once, at
    its end.

    :raises CaptureError: if it does.
    """
    if str(call.symbol) != SYMBOL or call.context.get("grad") is False:
        return
    written = [call.flat_args[i].name for i in call.effects.mutates]
    if written and any(map(requires_grad, call.flat_outs)):
        raise CaptureError(
            f"a checkpoint writes to {', '.join(dict.fromkeys(written))}, "
            "and in its backward once more",
            source=call.source,
        )
