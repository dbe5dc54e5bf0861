"""Copies of the containers among a call's arguments, which a program may change after the call."""

from __future__ import annotations

from typing import Any

__all__ = ["copy_containers"]


def copy_containers(value: Any) -> Any:
    """``value`` with its lists, dicts, sets and tuples copied, and everything else as it is.

    Two references to one list are two references to one copy. Objects of derived classes stay as
    they are, since only their class knows how they are made.
    """
    return _copied(value, {})


def _copied(value: Any, made: dict[int, Any]) -> Any:
    if type(value) not in (list, dict, set, tuple):
        return value
    key = id(value)
    if key in made:
        return made[key]
    if type(value) is set:
        made[key] = set(value)
    elif type(value) is tuple:
        items = tuple(_copied(item, made) for item in value)
        same = all(a is b for a, b in zip(items, value, strict=True))
        made[key] = value if same else items
    elif type(value) is list:
        copy = made[key] = []  # before its items, which may contain the list
        copy.extend(_copied(item, made) for item in value)
    else:
        made[key] = {}
        made[key].update((k, _copied(item, made)) for k, item in value.items())
    return made[key]
