"""Comparison of a program under autocast by tj with eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from tj_conformance.oracle import case as cases
from tj_torch.extend import is_on

if TYPE_CHECKING:
    from tj_conformance.oracle.case import Around, Case, Verdict

__all__ = ["entered", "evaluate"]


def evaluate(case: Case, jit: Callable[..., Any] = tj.jit) -> Verdict:
    """Run ``case`` in eager and jitted; ``left`` are the calls that run under autocast."""
    return cases.evaluate(case, jit, lambda call: is_on(call.context), entered(case))


def entered(case: Case) -> Around:
    """Context manager of the autocast that the options of ``case`` ask for."""
    dtype = dict(case.options).get("autocast")
    return contextlib.nullcontext if dtype is None else partial(torch.autocast, "cpu", dtype=dtype)
