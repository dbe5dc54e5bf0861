"""Lines of made-up programs: views, writes, copies, changes of mode.

A line is a function of a chooser, the existing values, and a free name; it returns text, or None
where no value fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["LINES", "Line", "Values"]

Values = dict[str, torch.Tensor]
Choose = Callable[[Any], Any]
Line = Callable[[Choose, Values, str], str | None]
Fits = Callable[[torch.Tensor], bool]


def _any(tensor: torch.Tensor) -> bool:
    return True


def _name(choose: Choose, values: Values, fits: Fits) -> str | None:
    names = sorted(name for name, value in values.items() if _fits(fits, value))
    return choose(names) if names else None


def _fits(fits: Fits, value: torch.Tensor) -> bool:
    try:
        return fits(value)
    except RuntimeError:  # a view that became invalid
        return False


def _of_one(template: str, fits: Fits = _any) -> Line:
    """``{x}`` is a value that fits, ``{new}`` a free name."""

    def line(choose: Choose, values: Values, new: str) -> str | None:
        x = _name(choose, values, fits)
        return None if x is None else template.format(x=x, new=new)

    return line


def _of_two(template: str, fits: Fits = _any) -> Line:
    """``{x}`` fits; ``{y}`` has a shape and a type that can be written to it."""

    def line(choose: Choose, values: Values, new: str) -> str | None:
        x = _name(choose, values, fits)
        y = x and _name(choose, values, lambda t: _can_be_written(t, values[x]))
        return template.format(x=x, y=y, new=new) if y else None

    return line


def _can_be_written(source: torch.Tensor, target: torch.Tensor) -> bool:
    if not torch.can_cast(source.dtype, target.dtype):
        return False
    return bool(torch.broadcast_shapes(source.shape, target.shape) == target.shape)


def _has(dimensions: int) -> Fits:
    return lambda t: t.dim() >= dimensions and t.numel() > 0


def _dimensions(count: int) -> Fits:
    return lambda t: t.dim() == count


def _number(t: torch.Tensor) -> bool:
    return t.dtype is not torch.bool


def _real(t: torch.Tensor) -> bool:
    return t.dtype.is_floating_point


def _complex(t: torch.Tensor) -> bool:
    return t.dtype.is_complex


def _ordered(t: torch.Tensor) -> bool:
    return not t.dtype.is_complex and t.dtype is not torch.bool


def _two_in_first(t: torch.Tensor) -> bool:
    return t.dim() > 0 and t.shape[0] == 2


def _big(t: torch.Tensor) -> bool:
    return t.is_contiguous() and t.numel() >= 3


_VIEWS: tuple[Line, ...] = (
    _of_one("{new} = {x}.view(-1)"),
    _of_one("{new} = {x}.reshape(-1)"),
    _of_one("{new} = {x}.flatten()"),
    _of_one("{new} = {x}.t()", _dimensions(2)),
    _of_one("{new} = {x}.T", _dimensions(2)),
    _of_one("{new} = {x}.transpose(0, -1)", _has(1)),
    _of_one("{new} = {x}.movedim(0, -1)", _has(2)),
    _of_one("{new} = {x}[0]", _has(1)),
    _of_one("{new} = {x}[-1]", _has(1)),
    _of_one("{new} = {x}[1:]", _has(1)),
    _of_one("{new} = {x}[..., ::2]", _has(1)),
    _of_one("{new} = {x}.select(-1, 0)", _has(1)),
    _of_one("{new} = {x}.narrow(0, 0, 1)", _has(1)),
    _of_one("{new} = {x}.diagonal()", _has(2)),
    _of_one("{new} = {x}.unfold(-1, 2, 1)", _has(1)),
    _of_one("{new} = {x}.as_strided((2, 2), (1, 1))", _big),
    _of_one("{new} = {x}.squeeze()"),
    _of_one("{new} = {x}.unsqueeze(0)"),
    _of_one("{new} = {x}.expand(2, *{x}.shape)"),
    _of_one("{new} = {x}.view_as({x})"),
    _of_one("{new} = torch.ops.aten.alias({x})"),
    _of_one("{new} = {x}.detach()"),
    _of_one("{new} = {x}.data"),
    _of_one("{new} = {x}.split(1)[0]", _has(1)),
    _of_one("{new}, {new}_ = {x}.unbind(0)", _two_in_first),
    _of_one("{new}, {new}_ = {x}.chunk(2)", _two_in_first),
    _of_one("{new} = {x}.view(torch.int32)", _real),
    _of_one("{new} = {x}.real", _complex),
    _of_one("{new} = {x}.imag", _complex),
    _of_one("{new} = {x}.conj()", _complex),
    _of_one("{new} = torch.view_as_real({x})", _complex),
)

_WRITES: tuple[Line, ...] = (
    _of_one("{x}.add_(1)", _number),
    _of_one("{x}.mul_(2)", _number),
    _of_one("{x}.neg_()", _number),
    _of_one("{x}.zero_()"),
    _of_one("{x}.fill_(1)"),
    _of_one("{x}.clamp_(0, 3)", _ordered),
    _of_one("{x}.relu_()", _ordered),
    _of_one("{new} = {x}.mul_(3)", _number),
    _of_two("{x}.add_({y})", _number),
    _of_two("{x}.mul_({y})"),
    _of_two("{x}.copy_({y})"),
    _of_two("{x} += {y}", _number),
    _of_one("{x} *= 2", _number),
    _of_one("{x}[0] = 5", _has(1)),
    _of_one("{x}[..., 1:] = 4", _has(1)),
    _of_one("{x}[...] = 2"),
    _of_one("{x}[torch.tensor([0])] = 3", _has(1)),
    _of_one("{x}[{x}.detach() > 2] = 0", _ordered),
    _of_one("{x}.index_put_((torch.tensor([0]),), {x}.detach()[:1] + 1)", _has(1)),
    _of_one("{x}.index_fill_(0, torch.tensor([0]), 7)", _has(1)),
    _of_one("{x}.masked_fill_({x}.detach() > 1, 1)", _ordered),
    _of_one("{x}.scatter_(0, torch.zeros_like({x}[:1], dtype=torch.int64), 9)", _has(1)),
    _of_one("torch._foreach_add_([{x}], 1)", _number),
    _of_two("torch._foreach_mul_([{x}, {y}], 2)", _number),
    _of_two("torch.add({x}, {y}, out={x})", _number),
    _of_one("{x}.data.mul_(2)", _number),
    _of_one("{x}.detach().add_(1)", _number),
    _of_one("{x}.uniform_()", _real),
    _of_one("{x}.bernoulli_(0.5)"),
)

_OF_METADATA: tuple[Line, ...] = (
    _of_one("{x}.t_()", _dimensions(2)),
    _of_one("{x}.transpose_(0, -1)", _has(1)),
    _of_one("{x}.unsqueeze_(0)"),
    _of_one("{x}.squeeze_()"),
    _of_one("{x}.requires_grad_()", _real),
    _of_one("{x}.detach_()"),
    _of_one("{x}.resize_(1)", _has(1)),
    _of_two("{x}.set_({y})"),
    _of_two("{x}.data = {y}"),
)

_VALUES: tuple[Line, ...] = (
    _of_one("{new} = {x} * 2"),
    _of_one("{new} = {x} + 0"),
    _of_two("{new} = {x} + {y}"),
    _of_two("{new} = {x} * {y}"),
    _of_one("{new} = {x} * {x}"),
    _of_one("{new} = {x}.sum()"),
    _of_one("{new} = {x}.tanh()", _real),
    _of_one("{new} = {x}.clone()"),
    _of_one("{new} = {x}.contiguous()"),
    _of_one("{new} = {x}.to(torch.float64)"),
    _of_one("{new} = torch.cat([{x}.flatten(), {x}.flatten()])"),
    _of_one("{new} = torch.rand_like({x})", _real),
)

_MODES: tuple[Line, ...] = tuple(
    (lambda choose, values, new, text=text: text)  # type: ignore[misc]
    for text in (
        "with torch.no_grad():",
        "with torch.no_grad():",
        "with torch.enable_grad():",
        "with torch.inference_mode():",
    )
)

LINES: tuple[Line, ...] = (
    *(_VIEWS * 2),
    *(_WRITES * 3),
    *(_VALUES * 3),
    *(_MODES * 3),
    *_OF_METADATA,
)
"""Candidates for the next line; metadata changes, which Dynamo
mostly does not capture, are rare.
"""
