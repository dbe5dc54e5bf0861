"""Group the nodes that ``torch.autograd.grad`` differentiates, in captured graphs.

A program may ask for gradients of what it has computed, as networks of physics do. The nodes from
the first use of a differentiated tensor to the call itself become the operators that they run,
those of autograd's backward among them: autograd has no history of a program that runs compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from tj_core.extend import CaptureError

from tj_torch.capture import levels
from tj_torch.ops.expansion.autograd_info import autograd_nodes
from tj_torch.torch_private.runtime import (
    HigherOrderOperator,
    exit_autocast,
    exit_inference_mode,
    pytree,
)

__all__ = [
    "USED_UP",
    "InnerGradientsError",
    "asks",
    "differentiated",
    "groups",
    "inputs_behind",
    "leaves_behind",
    "reason_against",
    "used_up",
]

USED_UP = "tj_used_up"
"""Key in the metadata of a node that is returned detached: the error of a backward from it, and the
names of the inputs that it depends on.
"""


class InnerGradientsError(CaptureError):
    """A gradient inside of the program that is not captured."""


def asks(node: torch.fx.Node) -> bool:
    """Test for a call of ``torch.autograd.grad``."""
    return node.op == "call_function" and node.target is torch.autograd.grad


def differentiated(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Tensors with regard to which ``node``, a call of ``torch.autograd.grad``, differentiates."""
    given = node.args[1] if len(node.args) > 1 else node.kwargs["inputs"]
    return [n for n in pytree.tree_leaves(given) if isinstance(n, torch.fx.Node)]


def groups(nodes: Iterable[torch.fx.Node]) -> Iterator[list[torch.fx.Node]]:
    """Split ``nodes`` into groups: one per differentiated part, else as `levels.groups` does.

    The gradient that the function of `torch.func.vjp` takes needs the history of values of a level
    that is left already, so both are one part.
    """
    parts = list(levels.groups(nodes))
    at = {node: i for i, part in enumerate(parts) for node in part}
    spans = [*_spans(at)]
    contexts = [*_contexts(at)] if spans else []
    while crossed := [c for c in contexts if any(_cross(c, span) for span in spans)]:
        spans = [*_joined(sorted(spans + crossed))]
        contexts = [c for c in contexts if c not in crossed]
    done = 0
    for first, last in _joined(sorted(spans)):
        yield from parts[done:first]
        yield from _numbers_first([node for part in parts[first : last + 1] for node in part])
        done = last + 1
    yield from parts[done:]


def _numbers_first(group: list[torch.fx.Node]) -> Iterator[list[torch.fx.Node]]:
    """Split off the nodes of ``group`` that make numbers of what is known before it.

    So is a float argument that differs between calls read from a tensor, which nothing else uses.
    """
    inside, early = set(group), list[torch.fx.Node]()
    for node in group:
        number = isinstance(node.meta.get("example_value"), torch.SymInt | torch.SymFloat)
        given = [n for n in node.all_input_nodes if n not in early]
        if number and all(n not in inside and [*n.users] == [node] for n in given):
            inside.remove(node)
            early.append(node)
    yield from ([node] for node in early)
    yield [node for node in group if node in inside]


def reason_against(nodes: Iterable[torch.fx.Node]) -> str | None:
    """Reason why the gradients in a graph of ``nodes`` cannot be imported; None if they can."""
    for group in groups(nodes):
        operations = (n.target for n in group if isinstance(n.target, HigherOrderOperator))
        if any(map(asks, group)) and (operation := next(operations, None)) is not None:
            return f"{operation} in what is differentiated"
    return None


def leaves_behind(tensor: Any) -> list[Any]:
    """Leaves that require grad in the history of ``tensor``, which may be one, or None."""
    if tensor is None:
        return []
    if tensor.requires_grad and tensor.grad_fn is None:
        return [tensor]
    return [node.variable for node in autograd_nodes([tensor]) if hasattr(node, "variable")]


def inputs_behind(graph: torch.fx.Graph, tensor: Any) -> tuple[str, ...]:
    """Names of inputs of ``graph`` in the history of ``tensor``, a value of the capture."""
    behind = {id(known) for known in (*autograd_nodes([tensor]), *leaves_behind(tensor))}
    given = ((n.name, n.meta.get("example_value")) for n in graph.find_nodes(op="placeholder"))
    tensors = ((name, fake) for name, fake in given if isinstance(fake, torch.Tensor))
    return tuple(name for name, fake in tensors if id(fake.grad_fn or fake) in behind)


def used_up(graph: torch.fx.Graph) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Errors that a backward from results of ``graph`` raises, and the inputs it would reach.

    A call of ``torch.autograd.grad`` has freed what autograd had saved for these. Results and
    inputs are given by index.
    """
    (results,) = graph.output_node().args
    at = {n.name: i for i, n in enumerate(graph.find_nodes(op="placeholder"))}
    found = {}
    for i, node in enumerate(results if isinstance(results, tuple | list) else ()):
        if isinstance(node, torch.fx.Node) and USED_UP in node.meta:
            text, inputs = node.meta[USED_UP]
            found[i] = text, tuple(at[name] for name in inputs)
    return found


def _spans(at: dict[torch.fx.Node, int]) -> Iterator[tuple[int, int]]:
    """First and last group of the nodes of each gradient; ``at`` has the group of each node."""
    for node, last in at.items():
        if asks(node):
            yield min(last, *(_begin(n, at) for n in differentiated(node))), last
        elif levels.differentiates(node):
            of_level = [
                n for n in pytree.tree_leaves(node.args[:2]) if isinstance(n, torch.fx.Node)
            ]
            first = min((at[n] for n in of_level if n in at), default=last)
            if first < last:
                yield first, last


def _begin(tensor: torch.fx.Node, at: dict[torch.fx.Node, int]) -> int:
    """Group in which the history of ``tensor`` begins.

    That is where the program has made a leaf that it depends on, or else at its first use.
    """
    first = min(at[user] for user in tensor.users if user in at)
    waiting, seen = [tensor], {tensor}
    while waiting:
        node = waiting.pop()
        if node in at and any(user.target == "requires_grad_" for user in node.users):
            first = min(first, at[node])
        waiting += [n for n in node.all_input_nodes if n in at and n not in seen]
        seen.update(node.all_input_nodes)
    return first


def _contexts(at: dict[torch.fx.Node, int]) -> Iterator[tuple[int, int]]:
    """First and last group of each context that is entered and left, such as autocast's."""
    for node, last in at.items():
        if node.target in (exit_autocast, exit_inference_mode):
            entered = node.args[0]
            assert isinstance(entered, torch.fx.Node)
            yield at[entered], last


def _cross(context: tuple[int, int], span: tuple[int, int]) -> bool:
    """Test for a ``context`` that is entered before ``span`` and left inside, or the reverse."""
    inside = [span[0] <= end <= span[1] for end in context]
    return inside[0] != inside[1]


def _joined(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join spans, in order, that have groups in common."""
    now: tuple[int, int] | None = None
    for first, last in spans:
        if now is not None and first <= now[1]:
            now = now[0], max(now[1], last)
            continue
        if now is not None:
            yield now
        now = first, last
    if now is not None:
        yield now
