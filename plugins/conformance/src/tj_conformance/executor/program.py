"""The text of a program that shows a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from tj_conformance.executor.comparison import Tolerance

if TYPE_CHECKING:
    from tj_conformance.executor.calls import Call
    from tj_conformance.executor.operations import Operation
    from tj_conformance.executor.subject import Subject

__all__ = ["program"]

MOST = 64
"""Numbers of a tensor that a program spells out."""


def program(
    subject: Subject,
    operation: Operation,
    place: tuple[str, int, str],
    calls: tuple[Call, ...],
    probe: str,
    kind: str | None,
    tolerance: Tolerance,
) -> str:
    """The program by which ``probe`` finds the fault for ``calls``.

    ``place`` is the data type, the number of the sample and the layout, for arguments that are too
    long to spell out. ``kind`` is that of the run, None for a probe of errors.
    """
    tensors: list[str] = []
    texts = [_call(call, place, operation.name, tensors) for call in calls]
    names = [*operation.uses, *(["sample"] if any("sample(" in t for t in texts) else [])]
    arguments = ["jit", "f", *texts, *([repr(kind)] if kind is not None else [])]
    checked = f"probes.{probe}({', '.join(arguments)})"
    return "\n".join([
        "import functools",
        "import torch",
        "import tj_core as tj",
        "from tj_conformance.executor import probes",
        *(f"from tj_conformance.executor.program_parts import {name}" for name in names),
        "",
        operation.text,
        "",
        f"jit = functools.partial(tj.jit, plugins={subject.plugins},",
        f"                        executors=[{subject.name!r}], strict=True)",
        *tensors,
        *_tolerant(checked, tolerance),
    ])  # fmt: skip


def _tolerant(checked: str, tolerance: Tolerance) -> list[str]:
    if tolerance == Tolerance():
        return [checked]
    return [
        "from tj_conformance.executor.comparison import Tolerance, tolerating",
        f"with tolerating({tolerance!r}):",
        f"    {checked}",
    ]


def _call(call: Call, place: tuple[str, int, str], name: str, lines: list[str]) -> str:
    """The text of ``call``; ``lines`` define the tensors in it."""
    mine = list(lines)

    def text(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return _value(value)
        mine.append(f"x{len(mine)} = {_tensor(value)}")
        return _Text(f"x{len(mine) - 1}")

    try:
        args, kwargs = tree_map(text, (call.args, dict(call.kwargs)))
    except ValueError:
        dtype, number, layout = place
        return f"sample({name!r}, {dtype!r}, {number}, {layout!r})"
    lines[:] = mine
    return f"probes.Call({args!r}, {kwargs!r})" if kwargs else f"probes.Call({args!r})"


class _Text:
    """A value that prints as ``text``."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _value(value: Any) -> Any:
    plain = (
        value is None or value is Ellipsis or isinstance(value, bool | int | float | complex | str)
    )
    if plain or isinstance(value, slice):
        return value
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return _Text(str(value))
    raise ValueError("no text for it")


def _tensor(x: torch.Tensor) -> str:
    """An expression for ``x``: its memory as numbers, with its strides."""
    plain = x.layout is torch.strided and not x.is_conj() and not x.is_neg()
    if not plain or x.untyped_storage().nbytes() > MOST * x.element_size():
        raise ValueError("it is too long to spell out")
    memory = torch.empty(0, dtype=x.dtype).set_(x.detach().untyped_storage())
    whole = x.is_contiguous() and x.numel() == memory.numel()
    numbers = _numbers((x.detach() if whole else memory).tolist(), x.dtype)
    dtype = "" if x.dtype in (torch.float32, torch.int64, torch.bool) else f", dtype={x.dtype}"
    text = f"torch.tensor({numbers}{dtype})"
    if not whole:
        offset = f", {x.storage_offset()}" if x.storage_offset() else ""
        text += f".as_strided({tuple(x.shape)}, {x.stride()}{offset})"
    elif not x.numel():
        text = f"torch.empty({tuple(x.shape)}, dtype={x.dtype})"
    return f"{text}.requires_grad_()" if x.requires_grad else text


def _numbers(value: Any, dtype: torch.dtype) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_numbers(v, dtype) for v in value)}]"
    text = repr(value)
    if text.lstrip("-") in ("inf", "nan"):
        return f"float({text!r})"
    if not isinstance(value, float):
        return text
    shorter = (f"{value:#.{digits}g}" for digits in range(1, 10))
    same = (t for t in shorter if torch.tensor(float(t), dtype=dtype).item() == value)
    return next(same, text)
