"""Tags: marks that plugins and users attach to values, calls and traces, and their propagation.

A carrier holds a `TagSet`. The `Tag` record declares once how a tag propagates to new values and
calls, and the rewriter carries it out; no plugin copies tags.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tj_core.errors import PluginConflictError, TagError, did_you_mean

if TYPE_CHECKING:
    from tj_core.source import Source

__all__ = [
    "BUILTIN_TAGS",
    "CONSUMES",
    "FENCE",
    "NEW_VALUE_OF",
    "NO_TAGS",
    "OF_BACKWARD",
    "Tag",
    "TagRegistry",
    "TagSet",
]

TagValue = str | int | float | bool | None
Carrier = Literal["proxy", "call", "trace"]


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag and how it propagates.

    ``carriers``: the kinds of objects that may hold the tag.
    ``into_body``: a call's tag is also on the calls of its body, and stays on them when the body
    takes the call's place; a value's tag is on the body's value for it in any case.
    ``to_replacement``: when a rule replaces a call, the new call (or the value in the same
    position) has the tag.
    ``through_views``: a value's tag is also on every view of it.
    ``to_backward``: backward calls and values derived from the carrier have the tag.
    ``group``, ``strength``: tags of one group exclude each other. When carriers merge, hard beats
    soft, two different hard tags are an error, and of two soft ones the first stays.
    """

    name: str
    doc: str = ""
    carriers: frozenset[Carrier] = frozenset({"proxy", "call"})
    into_body: bool = True
    to_replacement: bool = True
    through_views: bool = False
    to_backward: bool = False
    group: str = ""
    strength: Literal["hard", "soft"] = "hard"


class TagSet(Mapping[str, TagValue]):
    """An immutable, hashable set of tag names, each with a value (None for most).

    Values are plain and equal to themselves, so that printed tags read back.
    """

    __slots__ = ("_hash", "_items")

    def __init__(self, tags: Mapping[str, TagValue] | Iterable[str] = ()) -> None:
        if isinstance(tags, str):
            raise TypeError(f"a TagSet is made from names, not from the string {tags!r}")
        items: Mapping[str, TagValue] = tags if isinstance(tags, Mapping) else dict.fromkeys(tags)
        for name, value in items.items():
            _check_value(name, value)
        # In one order: equal sets print alike, whichever tag came first.
        self._items = dict(sorted(items.items()))
        self._hash = hash(tuple(self._items.items()))

    def __getitem__(self, name: str) -> TagValue:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TagSet) and self._items == other._items

    def add(self, name: str, value: TagValue = None) -> TagSet:
        """A set with ``name`` in addition."""
        return TagSet({**self._items, name: value})

    def without(self, *names: str) -> TagSet:
        """A set without ``names``."""
        return TagSet({k: v for k, v in self._items.items() if k not in names})

    def __str__(self) -> str:
        return ", ".join(k if v is None else f"{k}={v!r}" for k, v in self._items.items())

    def __repr__(self) -> str:
        return f"TagSet({{{self}}})"


def _check_value(name: str, value: object) -> None:
    plain = value is None or isinstance(value, str | int | float)
    if not plain or (isinstance(value, float) and not math.isfinite(value)):
        raise TagError(f"tag {name!r} cannot have the value {value!r}")


NO_TAGS = TagSet()


NEW_VALUE_OF = "NEW_VALUE_OF"
"""The tag of the new value of an input; the tag's value is the input's name."""

CONSUMES = "CONSUMES"
"""The tag of a region's call after which the program must not run again from its arguments."""

FENCE = "FENCE"
"""The tag of a call that no fused region reaches across: none has calls from both sides of it."""

OF_BACKWARD = "BACKWARD"
"""The tag of calls and values of the backward pass."""

BUILTIN_TAGS = (
    Tag("SAVE", "keep this value for the backward pass", group="residual"),
    Tag("RECOMPUTE", "compute this again in the backward pass", group="residual"),
    Tag("DONT_SAVE_FOR_BACKWARD", "never keep this value for the backward pass", group="residual"),
    Tag(
        "PREFER_SAVE",
        "better keep this value for the backward pass",
        group="residual",
        strength="soft",
    ),
    Tag(
        "PREFER_RECOMPUTE",
        "better compute this again in the backward pass",
        group="residual",
        strength="soft",
    ),
    Tag(
        "STATIC_MEMORY_LOCATION",
        "the value has the same address in every call",
        carriers=frozenset({"proxy"}),
        through_views=True,
    ),
    Tag(
        NEW_VALUE_OF,
        "whoever calls the program copies the value to its input of this name, as the last act",
        carriers=frozenset({"proxy"}),
        into_body=False,
    ),
    Tag(
        CONSUMES,
        "the call writes to inputs what a second run of the program would compute anew",
        carriers=frozenset({"call"}),
        into_body=False,
    ),
    Tag(FENCE, "no fused region reaches across the call", carriers=frozenset({"call"})),
    Tag(OF_BACKWARD, "the call belongs to the backward pass", to_backward=True),
)


class TagRegistry:
    """All tags of a session, and the rules by which they propagate."""

    __slots__ = ("_tags",)

    def __init__(self, tags: Iterable[tuple[str, Tag]] = ()) -> None:
        """``tags`` are pairs of the registering plugin's name and the tag.

        :raises PluginConflictError: if two share a name.
        :raises TagError: if a name is no identifier.
        """
        self._tags: dict[str, tuple[str, Tag]] = {t.name: ("core", t) for t in BUILTIN_TAGS}
        for plugin, tag in tags:
            if not tag.name.isidentifier():
                raise TagError(f"tag {tag.name!r} of plugin {plugin!r} is no identifier")
            if tag.name in self._tags:
                owner = self._tags[tag.name][0]
                raise PluginConflictError(
                    f"tag {tag.name!r} is registered by {owner} and by {plugin}"
                )
            self._tags[tag.name] = (plugin, tag)

    def __getitem__(self, name: str) -> Tag:
        return self.require(name)

    def __iter__(self) -> Iterator[Tag]:
        return (tag for _, tag in self._tags.values())

    def require(
        self, name: str, carrier: Carrier | None = None, source: Source | None = None
    ) -> Tag:
        """The tag called ``name``, which ``carrier`` must be allowed to hold.

        :raises TagError: if there is no such tag, or ``carrier`` may not hold it.
        """
        entry = self._tags.get(name)
        if entry is None:
            raise TagError(
                f"unknown tag {name!r}." + did_you_mean(name, self._tags),
                source=source,
                hint=f"known tags: {', '.join(sorted(self._tags))}; plugins add more",
            )
        if carrier is not None and carrier not in entry[1].carriers:
            raise TagError(f"tag {name!r} cannot be put on a {carrier}", source=source)
        return entry[1]

    def propagated(
        self,
        tags: TagSet,
        how: Literal["into_body", "to_replacement", "through_views", "to_backward"],
    ) -> TagSet:
        """The tags among ``tags`` that propagate ``how``."""
        if not tags:
            return NO_TAGS
        return TagSet({k: v for k, v in tags.items() if getattr(self.require(k), how)})

    def merge(self, first: TagSet, second: TagSet, source: Source | None = None) -> TagSet:
        """The tags of a carrier that replaces two, with the tags ``first`` and ``second``.

        :raises TagError: if two different hard tags of one group meet, or one tag has two values.
        """
        if not second or first == second:
            return first
        result = dict(first)
        for name, value in second.items():
            if result.get(name, value) != value:
                raise TagError(
                    f"tag {name!r} has two values, {result[name]!r} and {value!r}", source=source
                )
            rival = self._rival(name, result)
            if rival is None:
                result[name] = value
            elif self._beats(name, rival, source):
                del result[rival]
                result[name] = value
        return TagSet(result)

    def _rival(self, name: str, present: Iterable[str]) -> str | None:
        group = self.require(name).group
        if not group:
            return None
        return next((n for n in present if n != name and self.require(n).group == group), None)

    def _beats(self, name: str, rival: str, source: Source | None) -> bool:
        strengths = self.require(name).strength, self.require(rival).strength
        if strengths == ("hard", "hard"):
            raise TagError(
                f"tags {rival!r} and {name!r} exclude each other and are both hard", source=source
            )
        return strengths == ("hard", "soft")
