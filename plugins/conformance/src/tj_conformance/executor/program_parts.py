"""Names that programs of findings import: operations of op_db and their samples."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tj_conformance.executor.layouts import laid_out
from tj_conformance.executor.operations import operation
from tj_conformance.executor.running import continued, led

if TYPE_CHECKING:
    from tj_conformance.executor.calls import Call

__all__ = ["continued", "led", "operation", "sample"]


def sample(name: str, dtype: str, number: int, layout: str = "as given") -> Call:
    """The sample of the operation ``name`` with a number, in a layout."""
    calls = operation(name).calls(dtype, number + 1)
    call = next(itertools.islice(calls, number, None))
    return laid_out(call, layout)
