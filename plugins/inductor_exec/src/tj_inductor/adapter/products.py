"""Products in generated code as calls that return new tensors.

Inductor allocates each result and passes it with ``out=``. Without, products take less time, and
the version of the result is 0.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from tj_core.extend import contiguous_strides

__all__ = ["returning", "with_new_results"]

Run = Callable[[list[Any]], Sequence[Any]]

PRODUCT = re.compile(
    r"^(?P<indent> +)(?P<name>buf\d+) = empty_strided_cpu\((?P<sizes>\([\d, ]+\)), "
    r"(?P<strides>\([\d, ]+\)), torch\.\w+\)\n"
    r"(?P<comments>(?: +#.*\n)*)"
    r" +extern_kernels\.(?P<call>(?:mm|addmm|bmm|baddbmm)\(.*), out=(?P=name)\)$",
    re.MULTILINE,
)
"""Allocation of a result, and the call that writes to it."""

CALL = re.compile(
    r"^(?P<indent> *)def call\((?:self, )?args\):\n(?:(?P=indent) .*\n|\n)+", re.MULTILINE
)
"""The entry function of a module."""


def with_new_results(source: str) -> str:
    """``source``, in which products return their contiguous results."""
    return PRODUCT.sub(_returned, source)


def _returned(found: re.Match[str]) -> str:
    sizes, strides = (ast.literal_eval(found[name]) for name in ("sizes", "strides"))
    if strides != contiguous_strides(sizes):
        return found[0]
    call = found["call"].replace(", alpha=1, beta=1", "")
    return f"{found['comments']}{found['indent']}{found['name']} = extern_kernels.{call})"


def returning(called: Run, source: str) -> tuple[Run, str]:
    """``called`` and its text ``source``, with the products of `with_new_results`.

    The new function has the globals of the old one, and with them the module's kernels.
    """
    changed = with_new_results(source)
    text = CALL.search(changed)
    if changed == source or text is None or getattr(called, "__name__", "") != "call":
        return called, source
    owner = getattr(called, "__self__", None)
    function = inspect.unwrap(called).__func__ if owner is not None else called
    scope: dict[str, Any] = {}
    exec(
        compile(textwrap.dedent(text[0]), function.__code__.co_filename, "exec"),
        function.__globals__,
        scope,
    )
    made = scope["call"]
    return (made if owner is None else made.__get__(owner)), changed
