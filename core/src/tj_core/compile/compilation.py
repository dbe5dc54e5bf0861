"""What a trace became: every pass's trace, the claims, the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tj_core.compile.codegen import Program
from tj_core.compile.kernels import RegionKernel
from tj_core.contract.decline import Decline
from tj_core.ir.trace import Trace
from tj_core.passes.claim import ClaimRecord

__all__ = ["Compilation", "RegionCounts", "Track"]


@dataclass(frozen=True, slots=True)
class RegionCounts:
    """How regions of a program came about: compiled, found in the session, or kept on disk."""

    compiled: int = 0
    found: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Track:
    """What one trace became on its way to a program; ``regions`` are those that it calls."""

    traces: tuple[Trace, ...]
    claims: tuple[ClaimRecord, ...]
    program: Program
    regions: tuple[RegionKernel, ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """Everything one acquired trace became: each pass's trace, the claims, the program.

    ``function`` is what runs: the program's, or what a plugin made of several programs or put
    around it. ``others`` are the programs beside the main one by name: ``"backward"``, and
    ``"epilogue"``, what stands around; those not yet compiled have a trace only. ``declined`` are
    the transforms that did not take the program, and why. ``regions`` are those that the main
    program calls, ``counts`` how they came about.
    """

    traces: tuple[Trace, ...]
    claims: tuple[ClaimRecord, ...]
    program: Program
    function: Callable[..., Any]
    seconds: dict[str, float]
    others: dict[str, Track | Trace] = field(default_factory=dict)
    declined: tuple[tuple[str, Decline], ...] = ()
    regions: tuple[RegionKernel, ...] = ()
    counts: RegionCounts = field(default_factory=RegionCounts)
