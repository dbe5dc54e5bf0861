"""The executor: the calls that it fuses, and the compilation of regions."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tj_core.extend import (
    Claim,
    Decline,
    Executor,
    Fused,
    Fusion,
    FusionRegion,
    RuleTable,
    sizes_are_bound,
)

from tj_nvfuser.availability import distribution_version
from tj_nvfuser.definition import Seeds
from tj_nvfuser.operators import Operators
from tj_nvfuser.runs import RegionRun
from tj_nvfuser.translate import translated

if TYPE_CHECKING:
    from tj_nvfuser.bindings import Run, Target
    from tj_nvfuser.options import Options

__all__ = ["nvfuser_executor"]


def nvfuser_executor(options: Options, target: Target) -> Executor:
    """Make the executor, which fuses and claims no call by itself."""
    operators = Operators(options, target)
    fusion = Fusion(
        operators.can_fuse,
        _Compiler(options, target).compile,
        kernel=operators.is_kernel,
        check=operators.check,
        minimum=options.minimum,
        detached=False,
    )

    def fingerprint() -> str:
        # A kept program depends on what was declined, and that on headers of the machine.
        return f"nvFuser {distribution_version()}, scans: {target.no_scans()}"

    claims: RuleTable[Claim] = RuleTable("claim")
    return Executor("nvfuser", claims, fusion=fusion, fingerprint=fingerprint)


class _Compiler:
    """Compiles regions with ``options`` for ``target``; equal definitions are compiled once."""

    def __init__(self, options: Options, target: Target) -> None:
        self.options = options
        cached = functools.lru_cache(maxsize=options.cache)
        self.build: Callable[[str], Run] = cached(target.build)

    def compile(self, region: FusionRegion) -> Fused | Decline:
        """Compile the region to a function of a list of its inputs.

        :raises Refused: if a call has no definition.
        """
        # A number that was left out may have been the only one to tell a symbol.
        bound = sizes_are_bound(region.body.calls)
        if isinstance(bound, Decline):
            return bound
        start = time.perf_counter()
        definition = translated(region, self.options.emulate_precision)
        seeds = [i for i, given in enumerate(definition.inputs) if isinstance(given, Seeds)]
        run = RegionRun(region, self.build(definition.text), frozenset(seeds))
        return Fused(run, True, definition.text, time.perf_counter() - start)
