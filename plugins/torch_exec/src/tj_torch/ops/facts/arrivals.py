"""The order in which PyTorch's autograd takes the gradients of leaves.

The engine runs nodes from the last to the first, and takes the gradient of a leaf as soon as the
node of its first use has run: of one node's leaves in the order of its arguments. See
``Engine::evaluate_function`` in torch/csrc/autograd/engine.cpp; `AccumulateGrad` goes before all
other nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol, Trace

__all__ = ["arrivals"]


def arrivals(trace: Trace) -> list[str]:
    """Names of the inputs that calls take, from the one whose gradient comes first in eager.

    The operators in the bodies of calls count as the nodes. A Function of the user's has its
    arguments in the order in which its forward uses them, as Dynamo passes them.
    """
    left = {p.name: p.name for p in trace.inputs}
    nodes = [inputs for call in trace.calls for inputs in _inputs(call, left)]
    first = {name: i for i, inputs in reversed([*enumerate(nodes)]) for name in inputs}
    return [n for i, inputs in reversed([*enumerate(nodes)]) for n in inputs if first[n] == i]


def _inputs(call: BoundSymbol, names: Mapping[str, str]) -> Iterator[list[str]]:
    """The inputs of the program that each node in ``call`` takes.

    ``names`` maps their names around the call. A Function of the user's is one node, without body.
    """
    given = dict.fromkeys(p.name for p in call.flat_args)
    if call.body is None or not call.body.calls:
        yield [names[name] for name in given if name in names]
        return
    pairs = zip(call.body.inputs, given, strict=True)
    inside = {formal.name: names[name] for formal, name in pairs if name in names}
    for part in call.body.calls if inside else ():
        yield from _inputs(part, inside)
