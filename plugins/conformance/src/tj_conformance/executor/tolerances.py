"""The tolerances that plugins declare, in rule tables called ``tolerance``.

A rule maps names of data types to a relative tolerance, an absolute one, and the reason::

    table = RuleTable("tolerance")
    table.set("torch.exp", {"bfloat16": (2e-2, 1e-3, "it is computed in bfloat16")})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.extend import PluginError

from tj_conformance.executor.operations import Operation, spelling

if TYPE_CHECKING:
    import tj_core as tj

__all__ = ["Declared", "declared"]


@dataclass(frozen=True, slots=True)
class Declared:
    """Tolerances of one operation by data type, and the reasons in words."""

    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


def declared(session: tj.Session, operation: Operation) -> Declared:
    """The tolerances for ``operation``, by its public name or its name in op_db.

    :raises PluginError: for a rule of another form.
    """
    table = session.tables.get("tolerance", ())
    names = {operation.name, f"torch.{operation.entry.name}", spelling(operation.entry.op)}
    values, reasons = dict[str, tuple[float, float]](), list[str]()
    for rule in table:
        if rule.key not in names:
            continue
        for dtype, (rtol, atol, why) in _checked(rule).items():
            values[dtype] = rtol, atol
            reasons.append(f"{rule.key} in {dtype}: rtol {rtol}, atol {atol}, because {why}")
    return Declared(values, tuple(reasons))


def _checked(rule: Any) -> Mapping[str, tuple[float, float, str]]:
    given = rule.value
    if not isinstance(given, Mapping) or not all(map(_is_tolerance, given.values())):
        raise PluginError(
            f"plugin {rule.plugin!r} declares the tolerance {given!r} for {rule.key!r}",
            hint='{"bfloat16": (rtol, atol, "the reason")}',
        )
    return given


def _is_tolerance(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 3:
        return False
    rtol, atol, reason = value
    numbers = all(isinstance(n, float | int) for n in (rtol, atol))
    return numbers and isinstance(reason, str) and bool(reason)
