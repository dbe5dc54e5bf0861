"""Operations with samples: PyTorch's ``op_db``, and those that a plugin declares."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tj_conformance.databases.errors import error_arguments
from tj_conformance.databases.known import UNDEFINED
from tj_conformance.databases.op_db import full_name, operations, sample_arguments
from tj_conformance.executor.calls import Call
from tj_conformance.executor.running import continued, led
from tj_conformance.oracle.device import device
from tj_conformance.oracle.layouts import NOT_STRIDED

__all__ = ["DTYPES", "Operation", "function", "matching", "operation"]

DTYPES = (
    "float32", "float64", "bfloat16", "float16", "complex64", "complex128",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
"""Data types that operations are run in, the usual first."""

MODULES = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft")


@dataclass(frozen=True)
class Operation:
    """An entry of ``op_db``. ``region``: it is followed by other operations."""

    entry: Any
    region: bool = False

    @property
    def name(self) -> str:
        """The name in op_db, with that of the variant."""
        return full_name(self.entry)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The names of the data types that it supports on the CPU, the usual ones first."""
        found = self.entry.supported_dtypes(device())
        return tuple(name for name in DTYPES if getattr(torch, name) in found)

    def differentiable(self, dtype: str, *, second: bool = False) -> bool:
        """Decide if the operation has gradients, or second ones, in ``dtype``."""
        supported = self.entry.supports_gradgrad if second else self.entry.supports_autograd
        kinds = self.entry.supported_backward_dtypes(device())
        return bool(supported) and getattr(torch, dtype) in kinds

    def calls(self, dtype: str, count: int | None) -> Iterator[Call]:
        """The first ``count`` samples (None: all)."""
        grad = self.differentiable(dtype)
        for args, kwargs in sample_arguments(self.entry, getattr(torch, dtype), count, grad):
            yield Call(tuple(args), kwargs)

    def wrong_calls(self) -> Iterator[Call]:
        """Calls that must raise."""
        if self.entry.error_inputs_func is not None:
            for args, kwargs in error_arguments(self.entry):
                yield Call(tuple(args), kwargs)

    @functools.cached_property
    def text(self) -> str:
        """A definition of ``f``, the function to compile."""
        name = spelling(self.entry.op)
        given = "*led(args), **led(kwargs)" if self.region else "*args, **kwargs"
        called = f"{name or 'op'}({given})"
        lines = [] if name else [f"op = operation({self.name!r}).entry.op"]
        body = f"continued({called})" if self.region else called
        return "\n".join([*lines, "def f(*args, **kwargs):", f"    return {body}"])

    @property
    def uses(self) -> tuple[str, ...]:
        """The helpers of the kit that ``text`` uses."""
        named = {
            "operation": spelling(self.entry.op) is None,
            "continued": self.region,
            "led": self.region,
        }
        return tuple(name for name, used in named.items() if used)

    def function(self) -> Callable[..., Any]:
        """A new function ``f``, with a code object of its own."""
        return function(self.text)


def function(text: str) -> Callable[..., Any]:
    """The function ``f`` that ``text`` defines."""
    scope = {"torch": torch, "operation": operation, "continued": continued, "led": led}
    exec(compile(text, "<conformance>", "exec"), scope)
    return scope["f"]  # type: ignore[return-value]


@functools.cache
def spelling(fn: Any) -> str | None:
    """The public name of ``fn``, or None."""
    name = getattr(fn, "__name__", "")
    for module in MODULES:
        space: Any = torch
        for part in module.split(".")[1:]:
            space = getattr(space, part)
        if name and getattr(space, name, None) is fn:
            return f"{module}.{name}"
    return None


@functools.cache
def _entries() -> Mapping[str, Any]:
    return {full_name(op): op for op in operations(None)}


def operation(name: str, *, region: bool = False) -> Operation:
    """The operation called ``name`` in op_db."""
    return Operation(_entries()[name], region)


def matching(patterns: Iterable[str], *, region: bool = False) -> list[Operation]:
    """The operations whose names fit one of ``patterns``, as of a shell (none: all).

    Left out are those whose results are not defined, or that are not strided.
    """
    wanted = tuple(patterns) or ("*",)
    return [
        Operation(entry, region)
        for name, entry in _entries().items()
        if name not in UNDEFINED
        and name not in NOT_STRIDED
        and any(_fits(entry, p) for p in wanted)
    ]


def _fits(entry: Any, pattern: str) -> bool:
    """Compare the pattern with the names of all variants, and with that of one."""
    names = {n.removeprefix("nn.functional.") for n in (entry.name, full_name(entry))}
    names |= {entry.name, full_name(entry)}
    return any(fnmatch.fnmatchcase(name, pattern.removeprefix("torch.")) for name in names)
