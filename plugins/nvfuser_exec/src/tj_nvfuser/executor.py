"""The executor: what it takes, and how it compiles the regions of a program."""

from __future__ import annotations

from tj_core.extend import Claim, Executor, Fusion, RuleTable

from tj_nvfuser.bindings import Target
from tj_nvfuser.compiler import Compiler
from tj_nvfuser.operators import Operators
from tj_nvfuser.options import Options

__all__ = ["nvfuser_executor"]


def nvfuser_executor(options: Options, target: Target) -> Executor:
    """The record of the executor, which claims no call for itself."""
    operators = Operators(options, target)
    fusion = Fusion(
        operators.can_fuse,
        Compiler(options, target).compile,
        kernel=operators.is_kernel,
        check=operators.check,
        minimum=options.minimum,
        detached=False,
    )
    claims: RuleTable[Claim] = RuleTable("claim")
    return Executor("nvfuser", claims, fusion=fusion)
