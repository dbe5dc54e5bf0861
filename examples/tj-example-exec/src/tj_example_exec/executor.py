"""The executor: its operations, with a kernel and a check for each."""

from __future__ import annotations

from tj_core.extend import Claim, Executor, Packaging, RuleTable

from tj_example_exec import kernels
from tj_example_exec.checks import every, fits, large, not_tagged, plain

__all__ = ["example_executor"]


def example_executor(min_elements: int) -> Executor:
    """Make the executor; ``min_elements`` is the plugin's option."""
    common = every(not_tagged, plain, large(min_elements))
    gelu = every(fits(kernels.gelu, approximate="tanh"), common)
    silu = every(fits(kernels.silu, inplace=False), common)
    rms_norm = every(fits(kernels.rms_norm), common)

    # Keys are symbols as tj.explain prints them; torch.rms_norm is what F.rms_norm calls.
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("torch.nn.functional.gelu", Claim(kernels.gelu, gelu))
    claims.set("torch.nn.functional.silu", Claim(kernels.silu, silu))
    claims.set("torch.rms_norm", Claim(kernels.rms_norm, rms_norm))
    # Functions found by name, without state: nothing else is needed where a package runs.
    return Executor("example_exec", claims, packaging=Packaging())
