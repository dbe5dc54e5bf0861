"""Group the nodes of a `torch.func` level in captured graphs, from entering to leaving it.

Dynamo captures ``torch.func.grad(f)(x)`` as calls that enter a level, wrap values, run ``f`` on the
wrapped values, and leave the level. Wrapped values must not be seen outside of the level, and their
metadata does not show the wrapping; so the calls between become one subprogram.

Rule table ``levels``, open to plugins, maps a symbol to True if leaving the level reverts the state
it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tj_core.extend import BoundSymbol, RuleTable

from tj_torch.torch_private.texts import LEVEL_FUNCTIONS

if TYPE_CHECKING:
    import torch

__all__ = [
    "LEVELS",
    "changes_state",
    "differentiates",
    "escaping",
    "groups",
    "outside",
    "rules",
    "take_gradients",
]

LEVELS = "levels"
"""Name of the rule table."""


def rules() -> RuleTable[bool]:
    """Functions that `torch.func` calls to set up a level, and whose effects it reverts."""
    table: RuleTable[bool] = RuleTable(LEVELS, rule_type=bool)
    for path in LEVEL_FUNCTIONS:
        table.set(path, True)
    return table


def changes_state(call: BoundSymbol, table: RuleTable[bool]) -> bool:
    """Test for a call made for a side effect that outlasts the level."""
    if call.flat_args or call.flat_outs:
        return False
    rule = table.get(call.symbol)
    return rule is None or not rule.value


_BEFORE = ("_saved_tensors_hooks_disable", "lazy_load_decompositions")
_OF_GRADIENTS = ("_grad_increment_nesting", "_jvp_increment_nesting")
_AFTER = ("_saved_tensors_hooks_enable",)


def groups(nodes: Iterable[torch.fx.Node]) -> Iterator[list[torch.fx.Node]]:
    """Split ``nodes`` into groups: one per outermost level, else one per node."""
    depth = 0
    waiting: list[torch.fx.Node] = []
    done: list[torch.fx.Node] = []
    for node in nodes:
        name = _name(node)
        # `torch.func.grad` forbids saved-tensor hooks around the level
        # (`doesnt_support_saved_tensors_hooks`), and allows them again after it.
        if done and name not in _AFTER:
            yield done
            done = []
        if done:
            yield [*done, node]
            done = []
            continue
        waiting.append(node)
        # Levels may be nested, as in `jacfwd(jacrev(f))`: the outermost is the group.
        depth += name.endswith("_increment_nesting")
        if depth and name.endswith("_decrement_nesting"):
            depth -= 1
            done, waiting = ([], waiting) if depth else (waiting, [])
        elif not depth and name not in _BEFORE:
            yield from ([n] for n in waiting)
            waiting = []
    if done:
        yield done
    yield from ([n] for n in waiting)


def take_gradients(nodes: Iterable[torch.fx.Node]) -> bool:
    """Test for a level of gradients, backward or forward, among ``nodes``."""
    return any(_name(node) in _OF_GRADIENTS for node in nodes)


def differentiates(node: torch.fx.Node) -> bool:
    """Test for the call by which `torch.func` takes gradients."""
    return _name(node) == "_autograd_grad"


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def outside(group: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Nodes outside of ``group`` whose values it uses, in order of first use."""
    inside = set(group)
    used: dict[torch.fx.Node, Any] = {}
    for node in group:
        used.update(dict.fromkeys(n for n in node.all_input_nodes if n not in inside))
    return list(used)


def escaping(group: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """Nodes of ``group`` whose values are used after it."""
    inside = set(group)
    return [node for node in group if any(user not in inside for user in node.users)]
