"""Name a graph's inputs as in the user's program."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tj_core.extend import Proxy, Tag

__all__ = ["INFERENCE", "STATIC", "input_names", "static_inputs", "unsavable"]

INFERENCE = Tag(
    "INFERENCE",
    "the value is of inference mode: autograd refuses to save it for a gradient",
    carriers=frozenset({"proxy"}),
    into_body=False,
    through_views=True,
)

STATIC = "STATIC_MEMORY_LOCATION"
"""Tag of tensors that a module owns, whose memory stays in place from call to call."""


def input_names(
    graph: torch.fx.GraphModule, sources: Mapping[int, str], parameters: Sequence[str]
) -> list[str]:
    """Name per graph input: a parameter of the function, a dotted attribute, or a global.

    ``L['args'][0]`` is the function's first parameter, ``L['fn']._modules['l'].weight`` is
    ``l_weight``; an input without a source keeps Dynamo's name.
    """
    nodes = [n for n in graph.graph.nodes if n.op == "placeholder"]
    return [_name(sources.get(i, ""), n.name, parameters) for i, n in enumerate(nodes)]


def unsavable(proxy: Proxy, example: Any) -> Proxy:
    """``proxy`` with tags that say so, if autograd refuses to save ``example``.

    It may save what is computed from a tensor of inference mode.
    """
    if not (isinstance(example, torch.Tensor) and example.is_inference()):
        return proxy
    return proxy.replace(tags=proxy.tags.add(INFERENCE.name).add("DONT_SAVE_FOR_BACKWARD"))


def static_inputs(examples: Sequence[Any], sources: Mapping[int, str]) -> frozenset[int]:
    """Indices of a graph's inputs that are parameters or buffers."""
    owned = (i for i, source in sources.items() if _OWNED.search(source))
    given = (i for i, x in enumerate(examples) if isinstance(x, torch.nn.Parameter))
    return frozenset((*owned, *given))


_OWNED = re.compile(r"\._(parameters|buffers)\['[^']*'\]$")


def _name(source: str, otherwise: str, parameters: Sequence[str]) -> str:
    if match := re.match(r"L\['args'\]\[(\d+)\](.*)", source):
        index = int(match[1])
        root = parameters[index] if index < len(parameters) else f"arg{index}"
        return _words(root, match[2])
    if match := re.match(r"L\['kwargs'\]\['(\w+)'\](.*)", source):
        return _words(match[1], match[2])
    if (match := re.match(r"L\['(\w+)'\](.*)", source)) and match[1] != "fn":
        return _words(match[1], match[2])
    if match := re.match(r"L\['fn'\](.+)", source):
        return _words("", match[1])
    if match := re.match(r"G\['(\w+)'\](.*)", source):
        return _words(match[1], match[2])
    return otherwise


_STRUCTURE = ("_modules", "_parameters", "_buffers", "__closure__", "cell_contents", "__dict__")


def _words(root: str, path: str) -> str:
    """Join ``root`` with the attribute names and keys in ``path``; leave out ``_modules`` etc."""
    words = [w for w in re.findall(r"\w+", path) if w not in _STRUCTURE]
    return "_".join([root, *words]).strip("_") or "input"
