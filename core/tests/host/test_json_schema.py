"""The JSON Schema of ``[tool.tj]``: what it accepts is what tj accepts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tj_core.cli import main as cli
from tj_core.errors import ConfigError
from tj_core.host.config import CORE_KEYS, load_config
from tj_core.host.json_schema import config_schema, tool_schema
from tj_core.testing.plugins import load_plugins

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.testing.plugins import FakeDist

pytestmark = pytest.mark.usefixtures("own_project")

OPTIONS = '''
from dataclasses import dataclass
from typing import Literal
@dataclass(frozen=True)
class Options:
    """Options.

    ``threads``: how many. ``mode``: the mode, one of two; ``pair``: two values.
    """
    threads: int = 1
    mode: Literal["fast", "slow"] | None = None
    pair: tuple[int, str] = (1, "a")
    rates: tuple[float, ...] = ()
@hookimpl
def tj_options(): return Options
'''


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Test ``value`` against the part of JSON Schema that tj's schemas use."""
    if "anyOf" in schema:
        return any(accepts(one, value) for one in schema["anyOf"])
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_is(value, kind) for kind in types):
        return False
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties", {})
        return all(
            accepts(known[k], v) if k in known else other is not False and accepts_any(other, v)
            for k, v in value.items()
        )
    if isinstance(value, list) and isinstance(schema["items"], list):
        pairs = zip(schema["items"], value, strict=False)
        return len(value) == schema["minItems"] and all(accepts(s, v) for s, v in pairs)
    if isinstance(value, list):
        return all(accepts(schema["items"], item) for item in value)
    return value in schema.get("enum", [value])


def accepts_any(schema: dict[str, Any], value: Any) -> bool:
    """Test ``value`` against a schema that may be empty."""
    return not schema or accepts(schema, value)


def _is(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        return type(value) is int or (kind == "number" and type(value) is float)
    return type(value) is {"object": dict, "array": list, "boolean": bool, "string": str}[kind]


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"check": 2, "plugins": ["x", "..."], "strict": True, "max_entries": 3},
        {"check": "sample"},
        {"check": True},
        {"check": 4},
        {"chek": 1},
        {"plugins": "x"},
        {"plugins": [1]},
        {"fullgraph": False, "minversion": "0.1"},
        {"memo": 1},
        {"x": {"threads": 2, "mode": "slow", "pair": [1, "b"], "rates": [1, 2.5]}},
        {"x": {"threads": 2.5}},
        {"x": {"thread": 2}},
        {"x": {"mode": "quick"}},
        {"x": {"pair": [1]}},
        {"x": {"pair": [1, 2]}},
        {"x": {"rates": ["1"]}},
    ],
    ids=str,
)
def test_it_accepts_what_tj_accepts(fake_dist: FakeDist, table: dict[str, Any]) -> None:
    fake_dist("x", OPTIONS)
    schema = config_schema(load_plugins())
    try:
        load_plugins(**table)
        load_config(overrides=table)
    except ConfigError:
        right = False
    else:
        right = True
    assert accepts(schema, table) is right


def test_tables_of_plugins_that_are_not_known_hold_anything(fake_dist: FakeDist) -> None:
    fake_dist("gpu", OPTIONS + "@hookimpl\ndef tj_available(): return 'no device'\n")
    fake_dist("plain")
    schema = tool_schema("tj")
    assert accepts(schema, {"gpu": {"threads": "many"}, "elsewhere": {"a": 1}})
    assert not accepts(schema, {"plain": {"a": 1}})


def test_keys_are_described(
    fake_dist: FakeDist, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake_dist("x", OPTIONS)
    assert cli.main(["config", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == config_schema(load_plugins())
    keys = schema["properties"]
    assert [key for key in CORE_KEYS if not keys[key].get("description")] == []
    assert keys["check"]["default"] == 0
    x = keys["x"]["properties"]
    assert x["threads"] == {"description": "how many", "type": "integer", "default": 1}
    assert x["mode"]["description"] == "the mode, one of two"
    assert x["pair"]["description"] == "two values"
    assert "description" not in x["rates"]
