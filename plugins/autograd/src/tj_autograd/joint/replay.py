"""Random calls that draw the same numbers when they run again, as checkpointed regions ask.

Such a call becomes a function of the generators' states: the forward reads these, runs the call
from there and moves the generators on; the backward runs it from the same states and leaves the
generators as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
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
    wrapped_body,
)
from tj_torch.extend import random_state, set_random_state

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
    """The state of each of some generators.

    While a call runs from them, ``outer`` is what the generators go back to; that, in turn, knows
    by ``inner`` what the call runs from.
    """

    devices: Sequence[str]
    each: tuple[torch.Tensor, ...]
    outer: States | None = None
    inner: States | None = None


def states(devices: Sequence[str]) -> States:
    """The states that the generators of ``devices`` have."""
    return States(devices, tuple(map(random_state, devices)))


def exchange(devices: Sequence[str], given: States) -> States:
    """Set the generators of ``devices`` to ``given`` states; those that they had.

    Called before a call that is to draw again, and after it with what came from the first time.
    """
    before = states(devices)
    advance(devices, given)
    if given.inner is None:
        given.outer, before.inner = before, given
    else:
        given.inner.outer = None
    return before


def advance(devices: Sequence[str], given: States) -> None:
    """Set the generators of ``devices`` to ``given`` states."""
    for device, state in zip(devices, given.each, strict=True):
        set_random_state(device, state)


def restoring(program: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """``program``, a boxed one in which calls draw again from states that it is given.

    An error in such a call leaves the generators as they were before the call.
    """

    def run(values: list[Any]) -> Any:
        given = [value for value in values if isinstance(value, States)]
        try:
            return program(values)
        except BaseException:
            for inner in given:
                if inner.outer is not None:
                    advance(inner.devices, inner.outer)
                    inner.outer = None
            raise

    return run


def draws_again(backward: Trace) -> bool:
    """Whether calls in ``backward`` draw from states that it is given."""
    return any(isinstance(p, OpaqueProxy) and p.type == KIND for p in backward.inputs)


# ---------------------------------------------------------------------------- the calls


def resources(effects: Effects) -> tuple[str, ...]:
    """The generators among what ``effects`` use in order."""
    return tuple(r for r in effects.ordered if r.startswith("random:"))


def replayable(joint: Trace) -> Trace:
    """``joint``, in which random calls of checkpointed regions can run again, or are saved."""
    if not any(map(_asks, joint.calls)):
        return joint
    editor = TraceEditor(joint)
    for call in joint.calls:
        editor.keep(*_made(call, editor.fresh))
    return editor.done()


def _asks(call: BoundSymbol) -> bool:
    """Whether ``call`` is to be run again, and would draw other numbers then."""
    again = "RECOMPUTE" in call.tags or "PREFER_RECOMPUTE" in call.tags
    return again and "CHECKPOINT" in call.tags and bool(call.effects.ordered)


def _made(call: BoundSymbol, namer: Namer) -> Iterator[BoundSymbol]:
    if not _asks(call):
        yield call
    elif "STASH_RNG" in call.tags and _only_draws(call):
        # An operator in the place of a call that was decomposed has no body.
        whole = call if call.body is not None else call.replace(body=wrapped_body(call))
        yield from _replayed(whole, namer)
    else:  # what it returned stands for what it did
        kept = [(n, v) for n, v in call.tags.items() if n not in ("RECOMPUTE", "PREFER_RECOMPUTE")]
        yield call.replace(tags=TagSet(dict(kept)))


def _only_draws(call: BoundSymbol) -> bool:
    return resources(call.effects) == call.effects.ordered and call.executor is None


def _replayed(call: BoundSymbol, namer: Namer) -> Iterator[BoundSymbol]:
    """Reading the states, the call as a function of them, moving the generators on."""
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
    """The body of ``call`` between two exchanges of states; ``made`` has the states first."""
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
