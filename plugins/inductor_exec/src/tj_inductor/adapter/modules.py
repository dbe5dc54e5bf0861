"""Compiled graphs as modules of generated code: a function, and its text that makes it again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch._inductor.codecache import PyCodeCache

__all__ = ["Compiled", "apart", "extern_kernels", "restored", "without_compiler"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled graph: a function of a list that it empties, its text, the outputs' strides.

    ``same`` are outputs that may share memory with others, or with inputs. ``whole``: the text is
    all that there is.
    """

    function: Callable[[list[Any]], Sequence[Any]]
    source: str
    strides: tuple[tuple[int, ...] | None, ...]
    same: tuple[int, ...] = ()
    whole: bool = False


def restored(
    source: str, strides: Sequence[tuple[int, ...] | None], same: Sequence[int]
) -> Compiled:
    """A compiled graph, from what another process has said of it."""
    call = PyCodeCache.load(without_compiler(source)).call
    return Compiled(apart(call, list(same)), source, tuple(strides), tuple(same), whole=True)


COMPILER = re.compile(
    r"^from torch\._inductor\.(?:select_algorithm|codegen\.\w+) import \w+(?: as \w+)?\n",
    re.MULTILINE,
)
"""Imports at the head of generated code that import the compiler. Most modules use none of them."""

extern_kernels = SimpleNamespace(
    mm=torch.mm,
    addmm=torch.addmm,
    bmm=torch.bmm,
    baddbmm=torch.baddbmm,
    convolution=torch.convolution,
)
"""What Inductor's namespace of this name has for operators that it calls as they are."""


def without_compiler(source: str) -> str:
    """The text of a module, which does the same, and imports the compiler only if it needs that.

    It does for functions of the compiler's own, and for operators that its modules define.
    """
    if not all(_is_defined(*name) for name in OPERATOR.findall(source)):
        return source
    rest = COMPILER.sub("", source)

    def needed(line: re.Match[str]) -> str:
        (name,) = re.findall(r"(\w+)\n", line[0])
        used = set(re.findall(rf"\b{name}\b(?:\.\w+)?", rest))
        if not used:
            return ""
        known = {f"extern_kernels.{function}" for function in vars(extern_kernels)}
        return f"from {__name__} import extern_kernels\n" if used <= known else line[0]

    return COMPILER.sub(needed, source)


OPERATOR = re.compile(r"\b(?:torch\.ops\.|(?=inductor_ops\.))(\w+)\.(\w+)")
"""A namespace of operators and a name in it, as generated code spells them."""


def _is_defined(namespace: str, name: str) -> bool:
    found = "inductor" if namespace == "inductor_ops" else namespace
    return hasattr(getattr(torch.ops, found), name)


def apart(
    function: Callable[[list[Any]], Sequence[Any]], same: list[int]
) -> Callable[[list[Any]], Sequence[Any]]:
    """``function``, whose outputs ``same`` are in memory of their own, whatever it returns."""
    if not same:
        return function

    def run(box: list[Any]) -> Sequence[Any]:
        taken = {_memory(value) for value in box if isinstance(value, torch.Tensor)}
        outputs = list(function(box))
        for index, output in enumerate(outputs):
            if index in same and _memory(output) in taken:
                outputs[index] = output.clone()
            taken.add(_memory(output))
        return outputs

    return run


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()
