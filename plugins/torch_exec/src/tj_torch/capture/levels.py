"""`torch.func` in captured graphs: the nodes from entering a transform's level to leaving it.

Dynamo captures ``torch.func.grad(f)(x)`` as calls that enter a level, wrap values, run ``f`` on
what they wrap, and leave the level. What stands in between works on values that no other part of
the program may see, and whose metadata says only half of what they are; so it becomes one region.

Rule table ``levels`` says of a symbol, for plugins too: True, if leaving the level takes back what
it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from tj_core.extend import BoundSymbol, RuleTable

__all__ = ["LEVELS", "changes_state", "escaping", "groups", "outside", "rules"]

LEVELS = "levels"
"""The table's name."""

_HOMES = (
    "torch._C",
    "torch._C._autograd",
    "torch._C._functorch",
    "torch._functorch.predispatch",
    "torch._functorch.vmap",
    "torch.autograd.forward_ad",
)
"""Where versions of PyTorch keep the functions that set a level up."""


def rules() -> RuleTable[bool]:
    """What `torch.func` calls to set itself up, and takes back when it is done."""
    table: RuleTable[bool] = RuleTable(LEVELS, rule_type=bool)
    for home in _HOMES:
        for name in (
            "lazy_load_decompositions",
            "_maybe_load_decompositions",
            "_saved_tensors_hooks_disable",
            "_saved_tensors_hooks_enable",
            "_set_fwd_grad_enabled",
            "set_inplace_requires_grad_allowed",
            *(
                f"_{kind}_{step}_nesting"
                for kind in ("grad", "jvp", "vmap", "func")
                for step in ("increment", "decrement")
            ),
            "_enter_dual_level",
            "_exit_dual_level",
        ):
            table.set(f"{home}.{name}", True)
    return table


def changes_state(call: BoundSymbol, table: RuleTable[bool]) -> bool:
    """Whether ``call`` is there for what it does elsewhere, and that outlasts the level."""
    if call.flat_args or call.flat_outs:
        return False
    rule = table.get(call.symbol)
    return rule is None or not rule.value


_BEFORE = ("_saved_tensors_hooks_disable", "lazy_load_decompositions")
_AFTER = ("_saved_tensors_hooks_enable",)


def groups(nodes: Iterable[torch.fx.Node]) -> Iterator[list[torch.fx.Node]]:
    """The nodes, one by one, those inside of a level with the level as one group."""
    depth = 0
    waiting: list[torch.fx.Node] = []
    done: list[torch.fx.Node] = []
    for node in nodes:
        name = _name(node)
        if done and name not in _AFTER:
            yield done
            done = []
        if done:
            yield [*done, node]
            done = []
            continue
        waiting.append(node)
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


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def outside(group: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes whose values ``group`` uses, in order of first use."""
    inside = set(group)
    used: dict[torch.fx.Node, Any] = {}
    for node in group:
        used.update(dict.fromkeys(n for n in node.all_input_nodes if n not in inside))
    return list(used)


def escaping(group: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes of ``group`` whose values are used after it."""
    inside = set(group)
    return [node for node in group if any(user not in inside for user in node.users)]
