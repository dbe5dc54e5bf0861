"""Random calls in checkpointed regions: they draw the same numbers when they run again.

Such a call becomes a function of the generators' states. The forward reads the states, runs the
call from them and advances the generators. The backward runs the call from the same states and
leaves the generators as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    PLAIN_CONTEXT,
    REPLAYED,
    Alias,
    Body,
    BoundSymbol,
    Effects,
    Namer,
    OpaqueProxy,
    Proxy,
    Symbol,
    TagSet,
    Trace,
    TraceEditor,
    canonical_body,
    formals,
    substituted,
    substitution,
)
from tj_core.internal import wrapped_body
from tj_torch.internal import random_state, set_random_state

from tj_autograd.joint.repeatable import Repeats, together

if TYPE_CHECKING:
    import torch

__all__ = [
    "States",
    "advance",
    "draws_again",
    "exchange",
    "replayable",
    "resources",
    "restoring",
    "states",
]

KIND = "tj_autograd.joint.replay.States"


# ---------------------------------------------------------------------------- what runs


@dataclass(eq=False, slots=True)
class States:
    """States of the generators of some devices, in the order of ``devices``.

    While a call runs from these states, ``outer`` holds the states to restore after it;
    ``outer.inner`` points back here.
    """

    devices: Sequence[str]
    each: tuple[torch.Tensor, ...]
    outer: States | None = None
    inner: States | None = None


def states(devices: Sequence[str]) -> States:
    """Read the states of the generators of ``devices``."""
    return States(devices, tuple(map(random_state, devices)))


def exchange(devices: Sequence[str], given: States) -> States:
    """Set the generators of ``devices`` to ``given``; return the states that they had.

    Called before a call that draws again, with its states, and after it with the states that the
    first exchange returned.
    """
    before = states(devices)
    advance(devices, given)
    if given.inner is None:
        # Until the second exchange the generators have the states of the first run.
        given.outer, before.inner = before, given
    else:
        given.inner.outer = None
    return before


def advance(devices: Sequence[str], given: States) -> None:
    """Set the generators of ``devices`` to ``given`` states."""
    for device, state in zip(devices, given.each, strict=True):
        set_random_state(device, state)


def restoring(program: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Wrap the boxed ``program``: an error in a call that draws again restores the generators.

    Their states are those from before the call.
    """

    def run(values: list[Any]) -> Any:
        given = [value for value in values if isinstance(value, States)]
        try:
            return program(values)
        except BaseException:
            for inner in given:
                # The error came between two exchanges.
                if inner.outer is not None:
                    advance(inner.devices, inner.outer)
                    inner.outer = None
            raise

    return run


def draws_again(backward: Trace) -> bool:
    """Check that ``backward`` takes generator states, and so has calls that draw again."""
    return any(isinstance(p, OpaqueProxy) and p.type == KIND for p in backward.inputs)


# ---------------------------------------------------------------------------- the calls


def resources(effects: Effects) -> tuple[str, ...]:
    """Generators among the ordered resources of ``effects``, as ``random:<device>``."""
    return tuple(r for r in effects.ordered if r.startswith("random:"))


def replayable(joint: Trace, repeats: Repeats) -> Trace:
    """Make random calls of checkpointed regions in ``joint`` replayable, or saved.

    So are other ordered calls, unless a rule (``repeats``) says that they may run again.
    """
    if not any(map(_asks, joint.calls)):
        return joint
    editor, units = TraceEditor(joint), together(joint.calls, repeats)
    for call in joint.calls:
        editor.append(*((call,) if call.label in units else _made(call, editor.fresh)))
    return editor.done()


def _asks(call: BoundSymbol) -> bool:
    """Check that ``call`` is to run again and has an ordered effect, so that it would act twice."""
    again = "RECOMPUTE" in call.tags or "PREFER_RECOMPUTE" in call.tags
    return again and "CHECKPOINT" in call.tags and bool(call.effects.ordered)


def _made(call: BoundSymbol, namer: Namer) -> Iterator[BoundSymbol]:
    if not _asks(call):
        yield call
    elif "STASH_RNG" in call.tags and _only_draws(call):
        # An operator that took the place of a decomposed call has no body.
        whole = call if call.body is not None else call.replace(body=wrapped_body(call))
        yield from _replayed(whole, namer)
    else:  # its effect must not happen twice: its results are saved
        kept = [(n, v) for n, v in call.tags.items() if n not in ("RECOMPUTE", "PREFER_RECOMPUTE")]
        yield call.replace(tags=TagSet(dict(kept)))


def _only_draws(call: BoundSymbol) -> bool:
    return resources(call.effects) == call.effects.ordered and call.executor is None


def _replayed(call: BoundSymbol, namer: Namer) -> Iterator[BoundSymbol]:
    """Yield three calls: read the states, the call as a function
    of them, advance the generators.
    """
    ordered = Effects(ordered=call.effects.ordered)
    devices = tuple(r.partition(":")[2] for r in call.effects.ordered)
    before, after = (
        OpaqueProxy(namer(f"{call.label}_{when}"), KIND) for when in ("before", "after")
    )
    bare = BoundSymbol(
        Symbol("tj_autograd", "joint.replay.states"),
        (devices,),
        effects=ordered,
        outputs=before,
        context=call.context,
        source=call.source,
        parent=call.parent or call.label,
    )
    yield bare
    made = call.replace(
        symbol=call.symbol.as_variant(REPLAYED),
        args=(before, *call.args),
        outputs=(call.outputs, after),
        effects=Effects(aliases=tuple(map(_shifted, call.effects.aliases))),
        parent=call.parent or call.label,
    )
    yield made.replace(body=_body(call, made, devices))
    yield bare.replace(
        symbol=Symbol("tj_autograd", "joint.replay.advance"), args=(devices, after), outputs=None
    )


def _shifted(alias: Alias) -> Alias:
    return replace(alias, index=alias.index + 1) if alias.kind == "arg" else alias


def _body(call: BoundSymbol, made: BoundSymbol, devices: tuple[str, ...]) -> Body:
    """Put the body of ``call`` between two exchanges; the first
    argument of ``made`` is the states.
    """
    body = call.body
    assert body is not None
    inputs = formals(made)
    old, new = formals(call), {p.name: inputs[p.name] for p in call.flat_args}
    renamed = {old[name].name: new[name] for name in old}
    first = _exchange(devices, next(iter(inputs.values())), "_before", call.effects)
    assert isinstance(first.outputs, Proxy)
    last = _exchange(devices, first.outputs, "_after", call.effects)
    calls = (first, *(inner.map_proxies(substitution(renamed)) for inner in body.calls), last)
    outputs = (substituted(body.outputs, renamed), last.outputs)
    return canonical_body(Body(tuple(inputs.values()), calls, outputs))


def _exchange(devices: Any, given: Proxy, name: str, effects: Effects) -> BoundSymbol:
    return BoundSymbol(
        Symbol("tj_autograd", "joint.replay.exchange"),
        (devices, given),
        effects=Effects(ordered=effects.ordered),
        outputs=OpaqueProxy(name, KIND),
        context=PLAIN_CONTEXT,
    )
