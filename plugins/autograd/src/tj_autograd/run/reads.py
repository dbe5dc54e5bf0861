"""Arguments whose elements a call reads.

Rule table ``reads`` gives them for an operation, from plugins too: a function from a call to the
values that it reads. Other operations read all arguments. A gradient that is differentiated again
needs a copy of these values, if the caller may write to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tj_core.extend import FUNCTIONAL, BoundSymbol, Proxy, RuleTable

__all__ = ["READS", "Reads", "reads_nothing", "rules", "values_read"]

READS = "reads"
"""Name of the rule table."""

Reads = Callable[[BoundSymbol], Iterable[Proxy]]
"""Returns the arguments of a call whose elements it reads."""


def reads_nothing(call: BoundSymbol) -> Iterable[Proxy]:
    """Rule for a call that reads sizes and strides alone."""
    return ()


def _without_statistics(flag: str, place: int, default: bool) -> Reads:
    """Make the rule of a normalization, which reads the running statistics only if a flag is off.

    ``flag`` is the name of the parameter, ``place`` its position, ``default`` its default value.
    """

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
    """Make the table for PyTorch's operations."""
    table: RuleTable[Reads] = RuleTable(READS, rule_type=Callable)
    for name in ("sym_size.int", "sym_stride.int", "sym_numel.default"):
        table.set(f"aten.{name}", reads_nothing)
    functions = "torch.nn.functional."
    table.set(functions + "batch_norm", _without_statistics("training", 5, False))
    table.set(functions + "instance_norm", _without_statistics("use_input_stats", 5, True))
    return table


def values_read(call: BoundSymbol, table: RuleTable[Reads]) -> list[Proxy]:
    """Arguments of ``call`` whose elements it reads, by rule table ``table``."""
    symbol = call.symbol
    rule = table.get(symbol.base if symbol.variant == FUNCTIONAL else symbol)
    return list(call.flat_args if rule is None else rule.value(call))
