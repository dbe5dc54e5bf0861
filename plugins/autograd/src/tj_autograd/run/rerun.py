"""A program run once more under PyTorch's autograd, for gradients that are differentiated.

It starts from the inputs as they were and draws the numbers that it drew. Of inputs that the
program itself writes, the call therefore keeps a copy, where their value matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tj_core.extend import FUNCTIONAL, BoundSymbol, Proxy, Trace, dce
from tj_torch.extend import OVERWRITTEN

from tj_autograd.joint.replay import resources
from tj_autograd.run.depended import depended_once_more

__all__ = ["Rerun", "rerun"]

IGNORED = {
    "torch.nn.functional.batch_norm": ("training", 5, False),
    "torch.nn.functional.instance_norm": ("use_input_stats", 5, True),
}
"""Operations that use their second and third argument only if a flag is off: the flag's name,
place and default."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """``trace`` returns the roots. ``depended`` are the values that matter in it, ``copied`` the
    inputs (positions) to keep a copy of; ``devices`` are those whose generators it draws from.
    """

    trace: Trace
    depended: frozenset[str]
    copied: tuple[int, ...]
    devices: tuple[str, ...]


def rerun(functional: Trace, depended: frozenset[str], inputs: int) -> Rerun:
    """``functional``, which returns roots alone; gradients depend on the values in ``depended``.

    The first ``inputs`` of its inputs are the program's; nobody writes the memory of others.
    """
    trace = dce(functional)
    found = depended_once_more(trace, depended, _read)
    drawn = (r for call in trace.calls for r in resources(call.effects))
    return Rerun(
        trace,
        found,
        tuple(
            i
            for i, p in enumerate(functional.inputs[:inputs])
            if p.name in found and OVERWRITTEN.name in p.tags
        ),
        tuple(r.partition(":")[2] for r in dict.fromkeys(drawn)),
    )


def _read(call: BoundSymbol) -> Iterator[str]:
    """The names of the values that ``call`` uses."""
    ignored = _ignored(call)
    return (p.name for p in call.flat_args if p.name not in ignored)


def _ignored(call: BoundSymbol) -> frozenset[str]:
    symbol = call.symbol
    rule = IGNORED.get((symbol.base if symbol.variant == FUNCTIONAL else symbol).qualname)
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
