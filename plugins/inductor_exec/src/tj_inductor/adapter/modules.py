"""Compiled graphs as modules of generated code: a function, and its text that makes it again."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from tj_torch.internal import set_version_counter

from tj_inductor.adapter.products import returning

__all__ = [
    "COMPILERS",
    "Compiled",
    "apart",
    "extern_kernels",
    "restored",
    "uncounted",
    "without_compiler",
]

COMPILERS = ("torch._inductor", "torch._dynamo")
"""Packages that generated code imports, and a process that only runs it does not."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled graph: a function of a list that it empties, its text, the outputs' strides.

    ``called`` is the text's own function. ``same`` are outputs that may share memory with others,
    or with inputs. ``whole`` marks a graph that its text restores completely.
    """

    function: Callable[[list[Any]], Sequence[Any]]
    source: str
    strides: tuple[tuple[int, ...] | None, ...]
    same: tuple[int, ...] = ()
    whole: bool = False
    called: Callable[[list[Any]], Sequence[Any]] | None = None

    @classmethod
    def of(
        cls,
        called: Callable[[list[Any]], Sequence[Any]],
        source: str,
        strides: Iterable[tuple[int, ...] | None],
        same: Sequence[int],
        *,
        whole: bool,
    ) -> Compiled:
        """A compiled graph whose code is ``called``: its results are new ones, as in eager."""
        function = apart(uncounted(*returning(called, source)), list(same))
        return cls(function, source, tuple(strides), tuple(same), whole, called)


def restored(
    source: str, strides: Sequence[tuple[int, ...] | None], same: Sequence[int]
) -> Compiled:
    """A compiled graph, from what another process has said of it."""
    from tj_inductor.adapter.names import PyCodeCache

    call = PyCodeCache.load(without_compiler(source)).call
    return Compiled.of(call, source, strides, same, whole=True)


COMPILER = re.compile(
    r"^from torch\._inductor\.(?:select_algorithm|codegen\.\w+) import \w+(?: as \w+)?\n",
    re.MULTILINE,
)
"""Imports at the head of generated code that import the compiler. Most modules use none of them."""

_EXTERN = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_int_mm")

extern_kernels = SimpleNamespace(**{n: getattr(torch, n) for n in _EXTERN if hasattr(torch, n)})
"""Operators that Inductor calls as they are, in a namespace like its own of this name."""


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
            if index in same and (_memory(output) in taken or _is_part(output)):
                outputs[index] = _copy(output)
            taken.add(_memory(output))
        return outputs

    return run


def _is_part(output: torch.Tensor) -> bool:
    """Test for a tensor whose memory holds more than its elements, as a part of a product does."""
    last = sum((n - 1) * step for n, step in zip(output.shape, output.stride(), strict=True))
    return output.untyped_storage().nbytes() > (last + 1) * output.element_size()


def _copy(output: torch.Tensor) -> torch.Tensor:
    """Copy ``output`` with its strides; the copy's version is 0."""
    made = output.clone()
    # `clone` keeps the strides of dense tensors only.
    if made.stride() == output.stride():
        return made
    shape, strides = output.shape, output.stride()
    made = torch.empty_strided(shape, strides, dtype=output.dtype, device=output.device)
    # An expanded dimension has one element in memory; PyTorch writes to no tensor with such.
    once = [1 if stride == 0 else n for n, stride in zip(shape, strides, strict=True)]
    made.as_strided(once, strides).copy_(output.as_strided(once, strides))
    if not made.is_inference():
        set_version_counter(made, 0)
    return made


RETURNED = re.compile(r"^ +return (\(.*\))$", re.MULTILINE)
"""The results of a module of generated code, in its text."""


def uncounted(
    function: Callable[[list[Any]], Sequence[Any]], source: str
) -> Callable[[list[Any]], Sequence[Any]]:
    """``function``, whose text is ``source``; no write to a new result counts in its version.

    Operators with ``out=`` count their write. In eager a new result has the version 0.
    """
    new = _new(source)
    if not new:
        return function

    def run(box: list[Any]) -> Sequence[Any]:
        outputs = function(box)
        for index in new:
            output = outputs[index]
            # Inference tensors have no version counter.
            if not output.is_inference() and output._version:
                set_version_counter(output, 0)
        return outputs

    return run


WRITTEN = re.compile(r"\bout\d*=(?:reinterpret_tensor\()?(buf\d+)\b")
"""Name of memory that an operator with ``out=`` writes."""

RENAMED = re.compile(r"^ +(buf\d+) = (?:reinterpret_tensor\()?(buf\d+)\b", re.MULTILINE)
"""Second name of the same memory."""


def _new(source: str) -> list[int]:
    """Places of the new results of a module of generated code that an operator has written."""
    written = set(WRITTEN.findall(source))
    for name, earlier in RENAMED.findall(source):
        if earlier in written:
            written.add(name)
    returned = RETURNED.findall(source)
    made = ast.parse(returned[-1], mode="eval").body if returned else None
    return [
        index
        for index, value in enumerate(getattr(made, "elts", ()))
        if isinstance(value, ast.Name) and value.id in written
    ]


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()
