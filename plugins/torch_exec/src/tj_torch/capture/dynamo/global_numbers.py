"""Whole numbers that are global, or of global objects, and differ between calls.

Dynamo compiles for each value of such a number, where one of an argument becomes a symbol once it
has changed: a counter (``meter.count += 1``) of a script would be a new program in each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.read_values import name_of
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["correct"]


def correct(stack: ExitStack) -> None:
    """Let such a number become a symbol where a program before had another, as of an argument."""
    from tj_torch.torch_private.dynamo import builder, utils

    def deciding(original: Callable[..., bool]) -> Callable[..., bool]:
        def is_int_specialization_case(value: Any, source: Any) -> bool:
            return original(value, source) and not _has_changed(value, source)

        return is_int_specialization_case

    for module in (utils, builder):
        replace(stack, module, "is_int_specialization_case", deciding)


def _has_changed(value: int, source: Any) -> bool:
    """Test for a global that had another value when this code was captured before."""
    from tj_torch.torch_private.dynamo import (
        FrameStateSizeEntry,
        InstructionTranslator,
        auto_dynamic,
        process_automatic_dynamic,
    )

    kind = source.guard_source
    if not kind.name.startswith("GLOBAL"):
        return False
    found = process_automatic_dynamic(
        InstructionTranslator.current_tx(),
        name_of(source),
        FrameStateSizeEntry.make_scalar(value),
        is_unspecialized_nn_module=kind.is_unspecialized_nn_module(),
    )
    return found.scalar is auto_dynamic
