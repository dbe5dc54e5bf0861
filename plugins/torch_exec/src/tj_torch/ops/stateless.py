"""Calls without values that change nothing for the calls after them.

Rule table ``stateless`` says so of a symbol, for plugins too: True. What comes after another call
that takes and returns no value is not expanded, since that call may have changed its meaning.
"""

from __future__ import annotations

from tj_core.extend import RuleTable

__all__ = ["STATELESS", "rules"]

STATELESS = "stateless"
"""The table's name."""


def rules() -> RuleTable[bool]:
    """Those of PyTorch."""
    table: RuleTable[bool] = RuleTable(STATELESS, rule_type=bool)
    for name in (
        "torch._C._log_api_usage_once",
        "torch._assert",
        "torch._check",
        "torch.ops.profiler._record_function_enter_new.default",
        "torch.ops.profiler._record_function_exit._RecordFunction",
        "torch.clear_autocast_cache",
    ):
        table.set(name, True)
    return table
