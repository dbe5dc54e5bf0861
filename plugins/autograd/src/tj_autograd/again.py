"""A program run once more under PyTorch's autograd, for gradients that are differentiated.

It starts from the inputs as they were and draws the numbers that it drew. Of inputs that the
program itself writes, the call therefore keeps a copy, where their value matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tj_core.dce import dce
from tj_core.proxy import Proxy
from tj_core.symbol import BoundSymbol
from tj_core.trace import Trace
from tj_core.tree import leaves

from tj_autograd.replay import resources

__all__ = ["Again", "again"]

IGNORED = {
    "torch.nn.functional.batch_norm": ("training", 5, False),
    "torch.nn.functional.instance_norm": ("use_input_stats", 5, True),
}
"""Operations that use their second and third argument only if a flag is off: the flag's name,
place and default."""


@dataclass(frozen=True, slots=True)
class Again:
    """``trace`` returns the roots. ``copied`` are the inputs (positions) to keep a copy of,
    ``unread`` those whose value does not matter; ``devices`` those whose generators it draws from.
    """

    trace: Trace
    copied: tuple[int, ...]
    unread: frozenset[int]
    devices: tuple[str, ...]


def again(functional: Trace, roots: Sequence[int]) -> Again:
    """``functional`` with only the outputs that are ``roots``, by flat index."""
    outputs = list(leaves(functional.outputs))
    trace = dce(functional.replace(outputs=tuple(outputs[i] for i in roots)))
    read = set(_read(trace))
    positions = list(enumerate(functional.inputs))
    drawn = (r for call in trace.calls for r in resources(call.effects))
    return Again(
        trace,
        tuple(i for i, p in positions if p.name in read and "OVERWRITTEN" in p.tags),
        frozenset(i for i, p in positions if p.name not in read),
        tuple(r.partition(":")[2] for r in dict.fromkeys(drawn)),
    )


def _read(trace: Trace) -> Iterator[str]:
    """The names of all values that something depends on."""
    for call in trace.calls:
        ignored = _ignored(call)
        yield from (p.name for p in call.flat_args if p.name not in ignored)
    yield from (x.name for x in leaves(trace.outputs) if isinstance(x, Proxy))


def _ignored(call: BoundSymbol) -> frozenset[str]:
    rule = IGNORED.get(call.symbol.qualname.removesuffix(".functional"))
    if rule is None:
        return frozenset()
    name, place, flag = rule
    given = call.args[place] if len(call.args) > place else dict(call.kwargs).get(name, flag)
    parts = {"running_mean": 1, "running_var": 2}
    named = dict(call.kwargs)
    found = [call.args[i] if len(call.args) > i else named.get(n) for n, i in parts.items()]
    return (
        frozenset(p.name for p in found if isinstance(p, Proxy)) if given is True else frozenset()
    )
