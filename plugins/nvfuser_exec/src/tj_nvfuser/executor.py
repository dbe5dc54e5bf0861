"""The executor: the calls that it fuses, and the compilation of regions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tj_core.extend import Claim, Executor, Fusion, RuleTable

from tj_nvfuser.availability import distribution_version
from tj_nvfuser.compiler import Compiler
from tj_nvfuser.operators import Operators

if TYPE_CHECKING:
    from tj_nvfuser.bindings import Target
    from tj_nvfuser.options import Options

__all__ = ["nvfuser_executor"]


def nvfuser_executor(options: Options, target: Target) -> Executor:
    """Make the executor, which fuses and claims no call by itself."""
    operators = Operators(options, target)
    fusion = Fusion(
        operators.can_fuse,
        Compiler(options, target).compile,
        kernel=operators.is_kernel,
        check=operators.check,
        minimum=options.minimum,
        detached=False,
    )

    def fingerprint() -> str:
        return f"nvFuser {distribution_version()}, scans: {target.no_scans()}"

    claims: RuleTable[Claim] = RuleTable("claim")
    return Executor("nvfuser", claims, fusion=fusion, fingerprint=fingerprint)
