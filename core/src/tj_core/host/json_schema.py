"""The JSON Schema of ``[tool.tj]``, with plugins' tables: for editors and validate-pyproject."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from tj_core.host.config import Config, CoreOptions
from tj_core.host.options import resolve, schema
from tj_core.host.plugins import PluginManager

__all__ = ["config_schema", "tool_schema"]

_DRAFT = "http://json-schema.org/draft-07/schema#"
"""The draft that validate-pyproject reads."""

_SCALARS: Mapping[Any, str] = MappingProxyType(
    {bool: "boolean", int: "integer", float: "number", str: "string"}
)


def tool_schema(tool: str) -> dict[str, Any]:
    """The schema of ``[tool.tj]`` with the tables of all installed plugins.

    The entry point ``tj`` of group ``validate_pyproject.tool_schema``.
    """
    resolved = resolve(CoreOptions, [])
    return config_schema(
        PluginManager(Config(resolved.options, resolved.origins), lenient=True), tool
    )


def config_schema(manager: PluginManager, tool: str = "tj") -> dict[str, Any]:
    """The schema of ``[tool.tj]`` with the tables of the manager's plugins.

    A table of another plugin may hold anything, as its options are not known.
    """
    tables = {s.name: _plugin_table(manager, s.name) for s in manager.states}
    core = _table(CoreOptions)
    return {
        "$schema": _DRAFT,
        "$id": f"urn:tj-core:tool.{tool}",
        "title": f"[tool.{tool}]",
        **core,
        "properties": {**core["properties"], **tables},
        "additionalProperties": {"type": "object"},
    }


def _plugin_table(manager: PluginManager, name: str) -> dict[str, Any]:
    if name not in manager.names:
        return {"type": "object"}
    options = manager.options(name)
    if options is None:
        return {"type": "object", "additionalProperties": False}
    return _table(type(options))


def _table(cls: type[Any]) -> dict[str, Any]:
    """The schema of a table whose keys are the fields of ``cls``."""
    texts = _descriptions(cls.__doc__ or "")
    defaults = {f.name: _default(f) for f in dataclasses.fields(cls)}
    properties = {}
    for key, kind in schema(cls).items():
        found = _of_type(kind)
        if key in texts:
            found = {"description": texts[key], **found}
        if defaults[key] is not None:
            found["default"] = defaults[key]
        properties[key] = found
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _default(f: dataclasses.Field[Any]) -> Any:
    """The default in JSON; None if there is none, or it is None, which TOML cannot spell."""
    value = f.default
    if f.default_factory is not dataclasses.MISSING:
        value = f.default_factory()
    if value is dataclasses.MISSING:
        return None
    return list(value) if isinstance(value, list | tuple) else value


def _of_type(kind: Any) -> dict[str, Any]:
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    origin, items = get_origin(kind), get_args(kind)
    if origin is Literal:
        members = [item for item in items if item is not None]
        # The types as well: in Python, whose validators compare so, True is 1.
        types = sorted({_SCALARS[type(item)] for item in members})
        return {"enum": members, "type": types}
    if origin in (Union, UnionType):
        kinds = [_of_type(item) for item in items if item is not type(None)]
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if origin is tuple and Ellipsis not in items:
        size = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "items": [_of_type(item) for item in items], **size}
    return {"type": "array", "items": _of_type(items[0])}


def _descriptions(text: str) -> dict[str, str]:
    """The texts in a docstring that follow a key and a colon, by key."""
    found = re.findall(
        r"``(\w+)``: (.*?)(?=[;.]\s+(?:- )?``\w+``: |\n\s*- ``\w+``: |\Z)", text, re.S
    )
    return {key: " ".join(said.split()).rstrip(".") for key, said in found}
