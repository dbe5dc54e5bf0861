"""The executor: what it takes, and how it compiles the regions of a program."""

from __future__ import annotations

from tj_core.extend import Claim, Executor, Fusion, RuleTable, sizes_are_bound

from tj_inductor.compiler import Compiler
from tj_inductor.decompositions import decompositions
from tj_inductor.operators import can_fuse, convolves, is_kernel
from tj_inductor.options import Options

__all__ = ["inductor_executor"]


def inductor_executor(options: Options) -> Executor:
    """The record of the executor, which claims no call for itself."""
    compiler = Compiler(options)
    fusion = Fusion(
        can_fuse,
        compiler.compile,
        kernel=is_kernel,
        check=sizes_are_bound,
        minimum=options.minimum,
        hosts=True,
        together=compiler.together,
        whole=convolves,
        restore=compiler.restore,
        fingerprint=compiler.fingerprint,
    )
    claims: RuleTable[Claim] = RuleTable("claim")
    return Executor("inductor", claims, fusion=fusion, decompositions=decompositions())
