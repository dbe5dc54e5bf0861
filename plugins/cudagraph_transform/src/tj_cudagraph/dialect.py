"""The dialect of ``cudagraph.run``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_core.extend import Dialect, Symbol

from tj_cudagraph.transform import EXECUTOR, RUN

if TYPE_CHECKING:
    from tj_cudagraph.segment import Segments

__all__ = ["dialect"]


def dialect(segments: Segments) -> Dialect:
    """Make the dialect of the one symbol, bound to the ``segments`` of a session."""

    def resolve(symbol: Symbol) -> Callable[..., Any]:
        if symbol != RUN:
            raise LookupError(symbol.qualname)
        return segments.run

    return Dialect(EXECUTOR, (f"from tj_core.namespaces import {EXECUTOR}",), resolve)
