"""Which of its arguments a call looks at the elements of.

Rule table ``reads`` says so of an operation, for plugins too: a function from a call to the values
that it reads. Others read all that they are given. A gradient that is differentiated again needs
a copy of what it reads, if the caller may write to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tj_core.extend import FUNCTIONAL, BoundSymbol, Proxy, RuleTable

__all__ = ["READS", "Reads", "reads_nothing", "rules", "values_read"]

READS = "reads"
"""The table's name."""

Reads = Callable[[BoundSymbol], Iterable[Proxy]]
"""The arguments of a call whose elements it looks at."""


def reads_nothing(call: BoundSymbol) -> Iterable[Proxy]:
    """``call`` looks at sizes and strides alone."""
    return ()


def _without_statistics(flag: str, place: int, default: bool) -> Reads:
    """All but the running statistics, unless the flag of that name, at that place, is off."""

    def reads(call: BoundSymbol) -> Iterable[Proxy]:
        named = dict(call.kwargs)
        if (call.args[place] if len(call.args) > place else named.get(flag, default)) is not True:
            return call.flat_args
        parts = {"running_mean": 1, "running_var": 2}
        found = [call.args[i] if len(call.args) > i else named.get(n) for n, i in parts.items()]
        ignored = {p.name for p in found if isinstance(p, Proxy)}
        return [p for p in call.flat_args if p.name not in ignored]

    return reads


def rules() -> RuleTable[Reads]:
    """What PyTorch's operations read."""
    table: RuleTable[Reads] = RuleTable(READS, rule_type=Callable)
    for name in ("sym_size.int", "sym_stride.int", "sym_numel.default"):
        table.set(f"aten.{name}", reads_nothing)
    functions = "torch.nn.functional."
    table.set(functions + "batch_norm", _without_statistics("training", 5, False))
    table.set(functions + "instance_norm", _without_statistics("use_input_stats", 5, True))
    return table


def values_read(call: BoundSymbol, table: RuleTable[Reads]) -> list[Proxy]:
    """The arguments of ``call`` whose elements it looks at, as ``table`` says of its operation."""
    symbol = call.symbol
    rule = table.get(symbol.base if symbol.variant == FUNCTIONAL else symbol)
    return list(call.flat_args if rule is None else rule.value(call))
