"""Calls that take and return no values and leave later calls unaffected.

Rule table ``stateless``, open to plugins, maps a symbol to True. Calls after any other call without
values are not expanded, since it may have changed global state that they depend on.
"""

from __future__ import annotations

from tj_core.extend import RuleTable

from tj_torch.torch_private.texts import NOTE_FUNCTIONS

__all__ = ["STATELESS", "rules"]

STATELESS = "stateless"
"""Name of the rule table."""


def rules() -> RuleTable[bool]:
    """Stateless calls of PyTorch."""
    table: RuleTable[bool] = RuleTable(STATELESS, rule_type=bool)
    for name in (*NOTE_FUNCTIONS, "torch.clear_autocast_cache"):
        table.set(name, True)
    return table
