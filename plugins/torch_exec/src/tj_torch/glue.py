"""Namespace ``tj`` of printed programs: calls without a name in PyTorch or Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tj_torch.runtime.checks import check_index
from tj_torch.runtime.counters import bump_version, bump_versions, set_version, versioned
from tj_torch.runtime.func_levels import transformed
from tj_torch.runtime.function import autograd_function, check_reads
from tj_torch.runtime.functional import (
    copied_back,
    copy_all,
    copy_all_back,
    copy_back,
    with_strides,
    with_value,
    write_back,
)
from tj_torch.runtime.joined import EARLIER, joined
from tj_torch.runtime.packed_floats import float32s, float64s, number_of_sum
from tj_torch.runtime.subclasses import flatten, unflatten

__all__ = [
    "EARLIER",
    "autograd_function",
    "bump_version",
    "bump_versions",
    "call",
    "check_index",
    "check_reads",
    "constant",
    "copied_back",
    "copy_all",
    "copy_all_back",
    "copy_back",
    "flatten",
    "float32s",
    "float64s",
    "invoke",
    "joined",
    "method",
    "number_of_sum",
    "set_version",
    "transformed",
    "unflatten",
    "versioned",
    "with_strides",
    "with_value",
    "write_back",
]


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function``, a constant kept beside the program."""
    return function(*args, **kwargs)


def constant(value: Any, /) -> Any:
    """Return ``value``, a constant kept beside the program."""
    return value


def invoke(body: Callable[..., Any], /, *args: Any) -> Any:
    """Call ``body``, a region shared by calls (``torch.compiler.nested_compile_region``)."""
    return body(*args)


def method(name: str, value: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call method ``name`` of ``value``, whose type is known only at run time."""
    return getattr(value, name)(*args, **kwargs)
