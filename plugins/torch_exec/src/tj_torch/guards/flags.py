"""Guards on global flags that choose between kernels, which Dynamo leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tj_torch.ops.naming.paths import function_at

if TYPE_CHECKING:
    from tj_torch.guards.guard import Guards

__all__ = ["guard_flags"]


def guard_flags(guards: Guards, paths: Iterable[str]) -> None:
    """Guard that the functions at ``paths`` return the same; PyTorch may lack some of them."""
    for path in paths:
        function = function_at(path)
        if function is not None:
            value = function()
            term = f"{guards.bind('g', function)}() == {value!r}"
            guards.add(term, text=f"{path}() == {value!r}")
