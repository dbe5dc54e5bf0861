"""How tags reach the values that come to stand for others; shared by all that edits traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tj_core.ir.proxy import Proxy
from tj_core.ir.tags import NO_TAGS, TagRegistry, TagSet
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.ir.tree import map_tree
from tj_core.source import Source

__all__ = ["TagInheritance", "with_view_tags"]


def with_view_tags(call: BoundSymbol, tags: TagRegistry) -> BoundSymbol:
    """``call``, its outputs with the tags that propagate through views from what they alias."""
    inherited: dict[str, TagSet] = {}
    values = {"arg": call.flat_args, "out": call.flat_outs, "internal": ()}
    for alias in call.effects.aliases:
        for base in values[alias.kind][alias.index : alias.index + 1]:
            passed = tags.propagated(base.tags, "through_views")
            name = call.flat_outs[alias.output].name
            if passed:
                inherited[name] = tags.merge(inherited.get(name, NO_TAGS), passed, call.source)
    return call if not inherited else call.replace(outputs=_tagged(call, inherited, tags))


def _tagged(call: BoundSymbol, inherited: Mapping[str, TagSet], tags: TagRegistry) -> Any:
    def tagged(p: Proxy) -> Proxy:
        merged = tags.merge(p.tags, inherited.get(p.name, NO_TAGS), call.source)
        return p if merged == p.tags else p.replace(tags=merged)

    return map_tree(tagged, call.outputs, Proxy)


class TagInheritance:
    """Values that stand for others that went away, and the tags they inherit from those.

    A pass collects them while it goes through the calls and applies them at the end, since an heir
    was defined before.
    """

    __slots__ = ("_inherited", "_tags")

    def __init__(self, tags: TagRegistry) -> None:
        self._tags = tags
        self._inherited: dict[str, TagSet] = {}

    def inherit(self, heir: Any, tags: TagSet, source: Source | None = None) -> None:
        """Give ``tags`` to ``heir``; a constant inherits nothing.

        :raises TagError: if they contradict what it inherits from others.
        """
        if tags and isinstance(heir, Proxy):
            mine = self._inherited.get(heir.name, NO_TAGS)
            self._inherited[heir.name] = self._tags.merge(mine, tags, source)

    def proxy(self, p: Proxy) -> Proxy:
        """``p`` with what it inherits; itself if that is nothing."""
        inherited = self._inherited.get(p.name)
        merged = self._tags.merge(p.tags, inherited) if inherited else p.tags
        return p if merged == p.tags else p.replace(tags=merged)

    def call(self, call: BoundSymbol) -> BoundSymbol:
        """``call`` with all its proxies so."""
        call = call.map_proxies(self.proxy)
        rebinds = call.effects.rebinds
        if not any(p.name in self._inherited for _, p in rebinds):
            return call
        renewed = tuple((i, self.proxy(p)) for i, p in rebinds)
        return call.replace(effects=replace(call.effects, rebinds=renewed))

    def trace(self, trace: Trace) -> Trace:
        """``trace`` with all its proxies so; the same object if nobody inherits."""
        if not self._inherited:
            return trace
        return trace.replace(
            inputs=tuple(map(self.proxy, trace.inputs)),
            calls=tuple(map(self.call, trace.calls)),
            outputs=map_tree(self.proxy, trace.outputs, Proxy),
        )
