"""Find the user's source line of a captured node, an error or a call."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tj_core.extend import Source

__all__ = ["first_source", "node_source", "raising_source", "stack_source", "users_stacklevel"]

_TJ = str(Path(__file__).parent.parent)
_GENERATED = (_TJ, "<tj ", "<tj_root", "<eval_with_key>")
"""Prefixes of the file names of tj's own code, of its programs and of FX graphs' code."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n +(?! *File ")([^\n]*))?')


def node_source(node: torch.fx.Node) -> Source | None:
    """Innermost user frame of ``node``'s stack, with the path of the module it ran in.

    If there is none (a module of PyTorch's own is jitted), that module's ``forward``.
    """
    # Frames of PyTorch are left out by Dynamo: a jitted module of its own has none left.
    found = _innermost(node.stack_trace or "") or _forward(node)
    if found is None:
        return None
    file, line, function, text = found
    return Source(file, line, text, function, _module_path(node))


def first_source(nodes: Iterable[torch.fx.Node]) -> Source | None:
    """`node_source` of the first of ``nodes`` that has one."""
    return next(filter(None, map(node_source, nodes)), None)


def stack_source(stack: Any) -> Source | None:
    """Innermost user frame of a `traceback.StackSummary`, None if there is none."""
    for frame in reversed(list(stack or ())):
        if not _internal(frame.filename):
            return Source(frame.filename, frame.lineno or 0, frame.line or "", frame.name)
    return None


def raising_source(error: BaseException) -> Source | None:
    """Innermost user frame in the traceback of ``error``, None if there is none."""
    frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__))
    return stack_source(frames)


def users_stacklevel() -> int:
    """``stacklevel`` for a warning of the caller to point at the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _internal(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    return level


@lru_cache(maxsize=4096)
def _innermost(trace: str) -> tuple[str, int, str, str] | None:
    frames = [f for f in reversed(_FRAME.findall(trace)) if not f[0].startswith(_GENERATED)]
    for file, line, function, text in (*(f for f in frames if not _internal(f[0])), *frames):
        return file, int(line), function, text.strip()
    return None


@lru_cache(maxsize=4096)
def _internal(file: str) -> bool:
    """Test for a file of PyTorch's or tj's own code."""
    return file.startswith((*_GENERATED, str(Path(torch.__file__).parent)))


def _forward(node: torch.fx.Node) -> tuple[str, int, str, str] | None:
    """``forward`` of the module that ``node`` ran in, as Dynamo omits frames of PyTorch."""
    stack = node.meta.get("nn_module_stack")
    forward = getattr(list(stack.values())[-1][1], "forward", None) if stack else None
    code = getattr(forward, "__code__", None)
    if code is None:
        return None
    text = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return code.co_filename, code.co_firstlineno, code.co_name, text


def _module_path(node: torch.fx.Node) -> str:
    """Path of the submodule that ``node`` ran in, as ``layers.0.mlp``; ``""`` for functions."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    return _clean(path)


@lru_cache(maxsize=4096)
def _clean(path: str) -> str:
    path = re.sub(r"^L\['fn'\]\.?", "", path)
    path = re.sub(r"_modules\['([^']+)'\]", r"\1", path)
    path = re.sub(r"\._?modules\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", path)
    return re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", path).strip(".")
