"""Propagation of tags to views and to substitutes, for all edits of traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tj_core.ir.proxy import Proxy
from tj_core.ir.tags import NO_TAGS, TagRegistry, TagSet
from tj_core.ir.tree import map_tree

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol, Trace
    from tj_core.source import Source

__all__ = ["TagInheritance", "with_view_tags"]


def with_view_tags(call: BoundSymbol, tags: TagRegistry) -> BoundSymbol:
    """``call`` with its outputs' tags extended by those of aliased values that go through views."""
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
    """Tags of removed values, inherited by the values that replace them.

    A pass collects them while it goes through the calls and applies them at the end, since an heir
    may be defined earlier than the removed value.
    """

    __slots__ = ("_inherited", "_tags")

    def __init__(self, tags: TagRegistry) -> None:
        self._tags = tags
        self._inherited: dict[str, TagSet] = {}

    def inherit(self, heir: Any, tags: TagSet, source: Source | None = None) -> None:
        """Give ``tags`` to ``heir``; a constant inherits nothing.

        :raises TagError: if the tags contradict others that ``heir`` inherits.
        """
        if tags and isinstance(heir, Proxy):
            mine = self._inherited.get(heir.name, NO_TAGS)
            self._inherited[heir.name] = self._tags.merge(mine, tags, source)

    def proxy(self, p: Proxy) -> Proxy:
        """``p`` with its inherited tags; itself if there are none."""
        inherited = self._inherited.get(p.name)
        merged = self._tags.merge(p.tags, inherited) if inherited else p.tags
        return p if merged == p.tags else p.replace(tags=merged)

    def call(self, call: BoundSymbol) -> BoundSymbol:
        """``call`` with the inherited tags on all its proxies."""
        call = call.map_proxies(self.proxy)
        rebinds = call.effects.rebinds
        if not any(p.name in self._inherited for _, p in rebinds):
            return call
        renewed = tuple((i, self.proxy(p)) for i, p in rebinds)
        return call.replace(effects=replace(call.effects, rebinds=renewed))

    def trace(self, trace: Trace) -> Trace:
        """``trace`` with the inherited tags on all its proxies; the same object if none."""
        if not self._inherited:
            return trace
        return trace.replace(
            inputs=tuple(map(self.proxy, trace.inputs)),
            calls=tuple(map(self.call, trace.calls)),
            outputs=map_tree(self.proxy, trace.outputs, Proxy),
        )
