"""Edits of ``pyproject.toml`` that leave comments and layout as they are."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tj_core.errors import ConfigError
from tj_core.host.config import parse_toml

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["set_plugins"]

_HEADER = re.compile(r"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*tj[ \t]*\][ \t]*(?:#.*)?$", re.MULTILINE)
_NEXT = re.compile(r"^[ \t]*\[", re.MULTILINE)
_KEY = re.compile(r"""^[ \t]*(?:plugins|"plugins"|'plugins')[ \t]*=[ \t]*""", re.MULTILINE)
_ITEM = re.compile(r"""(?P<before>(?:\s*#[^\n]*\n)*)\s*(?P<item>"[^"\n\\]*"|'[^'\n]*')\s*,?[ \t]*"""
                   r"""(?P<after>#[^\n]*)?""")  # fmt: skip


def set_plugins(path: Path, names: Sequence[str]) -> str:
    """Set ``plugins`` of ``[tool.tj]`` in the file at ``path``, and return the line.

    All else in the file stays as it is; so do comments on the list's items.

    :raises ConfigError: for a file whose layout this cannot keep.
    """
    text = path.read_text("utf-8") if path.is_file() else ""
    line = "plugins = " + _on_one_line(names)
    wanted = _wanted(parse_toml(text, path), names)
    edited = _edited(text, names, line)
    try:
        # Read back before it is written: the expressions above do not know all of TOML.
        kept = parse_toml(edited, path) == wanted
    except ConfigError:  # a table stands twice now: the old one is written in another way
        kept = False
    if not kept:
        raise ConfigError(
            f"{path}: [tool.tj] is not written in a way that can be edited here",
            hint=f"write it by hand: {line}",
        )
    path.write_text(edited, "utf-8")
    return line


def _edited(text: str, names: Sequence[str], line: str) -> str:
    header = _HEADER.search(text)
    if header is None:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[tool.tj]\n{line}\n"
    following = _NEXT.search(text, header.end())
    end = following.start() if following else len(text)
    key = _KEY.search(text, header.end(), end)
    if key is None:
        return f"{text[: header.end()]}\n{line}{text[header.end() :]}"
    close = _end_of_list(text, key.end())
    return text[: key.end()] + _list(text[key.end() : close], names) + text[close:]


def _list(old: str, names: Sequence[str]) -> str:
    """``old``, a list in TOML, with ``names`` as its items; each keeps its comments."""
    if "\n" not in old:
        return _on_one_line(names)
    items = {_name(m["item"]): m for m in _ITEM.finditer(old[1:-1])}
    lines = []
    for name in names:
        found = items.get(name)
        lines += [part.strip() for part in found["before"].splitlines()] if found else []
        after = f"  {found['after'].strip()}" if found and found["after"] else ""
        lines.append(f"{json.dumps(name)},{after}")
    indent = re.search(r"\n([ \t]+)\S", old)
    pad = indent[1] if indent else "    "
    last = old[old.rindex("\n") + 1 : -1]
    return "[\n" + "".join(f"{pad}{part}\n" for part in lines if part) + last + "]"


def _name(item: str) -> str:
    return item[1:-1]


def _on_one_line(names: Sequence[str]) -> str:
    return f"[{', '.join(map(json.dumps, names))}]"


def _end_of_list(text: str, start: int) -> int:
    """The place after the ``]`` of the list that begins at ``start``; strings hold none."""
    skip = re.compile(r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*|[^\]"'#]""")
    place = start
    while place < len(text) and text[place] != "]":
        found = skip.match(text, place)
        place = found.end() if found else place + 1
    return place + 1


def _wanted(document: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """``document`` with ``names`` as the project's plugins."""
    wanted = copy.deepcopy(document)
    wanted.setdefault("tool", {}).setdefault("tj", {})["plugins"] = list(names)
    return wanted
