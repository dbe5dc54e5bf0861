"""What captures do not say of a `torch.autograd.Function`, read off the source of what ran.

Dynamo captures a backward with gradients off, and leaves out what would switch them off again. With
``create_graph`` they are on, and then the difference matters. It also captures a backward as if
every output had a tangent, whatever ``set_materialize_grads`` says.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch._functorch import autograd_function as functorch_function
from torch.autograd import function as autograd_function

__all__ = ["differentiability", "refuses_zeros"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_SWITCHES = frozenset(
    ("no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "_set_grad_enabled")
)
_MATERIALIZE = frozenset(("set_materialize_grads",))
_ONCE = (autograd_function.__file__, "wrapper")  # what once_differentiable wraps around


def differentiability(backward: torch.fx.GraphModule, outer: torch.fx.Node) -> str:
    """``any``; ``once`` for what users marked so; ``unknown`` where gradients are switched inside.

    ``outer`` is the node that applies the function: frames above it are none of the backward's.
    """
    above = len(_FRAME.findall(outer.stack_trace or ""))
    found = "any"
    for file, line, name in dict.fromkeys(_frames(backward, above)):
        if (file, name) == _ONCE:
            found = "once" if found == "any" else found
        elif _mentions(file, int(line), _SWITCHES):
            found = "unknown"
    return found


def refuses_zeros(forward: torch.fx.GraphModule, outer: torch.fx.Node) -> bool:
    """Whether the function's forward mentions ``set_materialize_grads``."""
    above = len(_FRAME.findall(outer.stack_trace or ""))
    frames = dict.fromkeys(_frames(forward, above))
    seen = [f for f in frames if f[0] != functorch_function.__file__]
    return any(_mentions(f, int(line), _MATERIALIZE) for f, line, _ in seen)


def _frames(graph: torch.fx.GraphModule, above: int) -> Iterator[tuple[str, str, str]]:
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "output"):
            yield from _FRAME.findall(node.stack_trace or "")[above:]


@lru_cache(maxsize=1024)
def _mentions(file: str, line: int, words: frozenset[str]) -> bool:
    """Whether the function around ``line`` mentions one of ``words``; True if it is not found."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return True
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, functions) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    if not around:
        return True
    innermost = max(around, key=lambda node: node.lineno)
    return any(_word(node) in words for node in ast.walk(innermost))


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
