"""Calls whose errors the program handles: all of them must run, though nobody uses their results.

Where the program is captured whole, a handler of its own runs after the compiled program has raised
(`tj_torch.dispatch.changed_objects`). A call that is left out, as its result is not used, does not
raise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tj_core.extend import (
    BoundSymbol,
    Proxy,
    RuleTable,
    Stage,
    Tag,
    Trace,
    formal_index,
    leaves,
    live_items,
    value_names,
)

if TYPE_CHECKING:
    import torch
    from tj_core.extend import Overwrites

__all__ = ["HANDLED", "all_run", "note_handled", "tagged_handled"]

HANDLED = Tag(
    "HANDLED",
    "a call whose error a handler of the program may catch",
    carriers=frozenset({"call"}),
    into_body=False,
)

_METADATA = re.compile(r"aten\.(sym_\w+|new_\w+|\w+_like)\.")
"""Operators that read no elements of their first argument, beside those of table ``overwrites``."""


def note_handled(node: torch.fx.Node) -> None:
    """Note that a handler may catch the error of the call that ``node`` is."""
    node.meta[HANDLED.name] = True


def tagged_handled(call: BoundSymbol, node: torch.fx.Node) -> BoundSymbol:
    """``call``, the import of ``node``, with the tag if it was noted."""
    noted = HANDLED.name in node.meta
    return call.replace(tags=call.tags.add(HANDLED.name)) if noted else call


def all_run(count: int, traces: Sequence[Trace], rules: RuleTable[Overwrites]) -> bool:
    """Test if all calls that were noted, ``count``, run whenever the program of ``traces`` does.

    What the program returns, or does, must depend on elements of their results. ``rules`` is the
    table ``overwrites``.
    """
    acquired = traces[0]
    functional = next((t for t in traces if t.stage is Stage.FUNCTIONAL), acquired)
    noted = [call.label for call in acquired.calls if HANDLED.name in call.tags]

    def reads(call: BoundSymbol, live: set[str]) -> set[str] | None:
        return _read(call, live, rules)

    needed = live_items(functional.calls, value_names(functional.outputs), reads)
    found = {n for c in needed if HANDLED.name in c.tags for n in (c.label, c.parent)}
    # Dynamo leaves out an index whose result is not used.
    return len(noted) == count and found.issuperset(noted)


def _read(call: BoundSymbol, live: set[str], rules: RuleTable[Overwrites]) -> set[str] | None:
    """The values that ``live`` values depend on through ``call``; None if they do not."""
    kept = not call.effects.removable
    if not kept and not any(p.name in live for p in call.flat_outs):
        return None
    body = call.body
    if body is None or kept:
        rule = rules.get(call.symbol)
        anew = rule is not None and rule.value(call) == "all"
        anew = anew or _METADATA.match(call.symbol.qualname) is not None
        return value_names(call.flat_args[1:] if anew else call.flat_args)
    pairs = zip(leaves(call.outputs), leaves(body.outputs), strict=True)
    named = ((out, formal) for out, formal in pairs if isinstance(out, Proxy))
    inner = {f.name for out, f in named if out.name in live and isinstance(f, Proxy)}
    live_items(body.calls, inner, lambda c, names: _read(c, names, rules))
    taken = (f for f in body.inputs if f.name in inner)
    return {call.flat_args[formal_index(f.name)].name for f in taken}
