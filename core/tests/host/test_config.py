"""Configuration: sources, precedence, and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest
from tj_core.errors import ConfigError, TjWarning
from tj_core.host.config import CORE_KEYS, Config, CoreOptions, Value, load_config, strength
from tj_core.host.options import env_layer, layer, resolve, schema

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_project")


def project(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pyproject.toml"
    file.write_text(text, "utf-8")
    return file


def from_env(**values: str) -> Config:
    return load_config(environ=values)


# ------------------------------------------------------------------------------- files


def test_without_a_file_everything_is_default() -> None:
    config = load_config()
    assert config.file is None
    assert config.core == CoreOptions()
    assert {v.origin for _, v in config.items()} == {"default"}


def test_the_nearest_file_with_a_table_is_read(tmp_path: Path) -> None:
    outer = project(tmp_path, "[tool.tj]\ncheck = 1\n")
    project(tmp_path / "a", "[tool.other]\nname = 'tj'\n")
    config = load_config(tmp_path / "a")
    assert config["check"] == Value(1, f"{outer} [tool.tj]")
    assert config.file == outer


def test_the_search_starts_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path, "[tool.tj]\ncheck = 1\n")
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    assert load_config().core.check == 1


def test_tj_config_overrides_the_search(tmp_path: Path) -> None:
    project(tmp_path, "[tool.tj]\ncheck = 1\n")
    other = project(tmp_path / "else", "[tool.tj]\ncheck = 2\n")
    assert load_config(environ={"TJ_CONFIG": str(other)}).core.check == 2


def test_tj_config_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TJ_CONFIG.*nowhere\.toml"):
        load_config(environ={"TJ_CONFIG": str(tmp_path / "nowhere.toml")})


def test_start_may_be_a_file_and_beats_tj_config(tmp_path: Path) -> None:
    one = project(tmp_path / "one", "[tool.tj]\ncheck = 1\n")
    two = project(tmp_path / "two", "[tool.tj]\ncheck = 2\n")
    assert load_config(one, environ={"TJ_CONFIG": str(two)}).core.check == 1
    with pytest.raises(ConfigError, match="no file"):
        load_config(tmp_path / "missing.toml")


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    file = project(tmp_path, "[tool.tj\n")
    with pytest.raises(ConfigError, match="not valid TOML") as caught:
        load_config()
    assert str(file) in str(caught.value)


def test_a_broken_file_of_another_project_is_not_ours(tmp_path: Path) -> None:
    project(tmp_path, "[tool.x\n")
    assert load_config().file is None


def test_a_table_in_the_wrong_place_is_reported(tmp_path: Path) -> None:
    project(tmp_path, "[tj]\ncheck = 1\n")
    with pytest.raises(ConfigError, match=r"Did you mean \[tool\.tj\]"):
        load_config()


def test_the_table_must_be_a_table(tmp_path: Path) -> None:
    project(tmp_path, "[tool]\ntj = 3\n")
    with pytest.raises(ConfigError, match="must be a table"):
        load_config()


# ------------------------------------------------------------------------------- precedence


def test_precedence_and_origins(tmp_path: Path) -> None:
    file = project(tmp_path, "[tool.tj]\ncheck = 1\nmemo = false\nmax_entries = 3\n")
    environ = {"TJ_CHECK": "2", "TJ_MEMO": "on"}
    config = load_config(overrides={"check": 0}, environ=environ)
    assert config["check"] == Value(0, "call")
    assert config["memo"] == Value(True, "env TJ_MEMO")
    assert config["max_entries"] == Value(3, f"{file} [tool.tj]")
    assert config["strict"] == Value(False, "default")


def test_an_override_may_bring_its_origin() -> None:
    config = load_config(overrides={"check": Value(1, "cli --check")})
    assert config["check"] == Value(1, "cli --check")


def test_strength_orders_the_sources() -> None:
    origins = ["call", "cli --plugins", "env TJ_PLUGINS", "/p/pyproject.toml [tool.tj]", "default"]
    assert sorted(reversed(origins), key=strength) == origins


def test_a_wrong_value_is_an_error_even_where_overridden(tmp_path: Path) -> None:
    project(tmp_path, "[tool.tj]\ncheck = 'high'\n")
    with pytest.raises(ConfigError, match="'check' must be"):
        load_config(overrides={"check": 0})


def test_disable_adds_up_with_dots(tmp_path: Path) -> None:
    file = project(tmp_path, '[tool.tj]\ndisable = ["a", "b"]\n')
    environ = {"TJ_DISABLE": "c, ..., a"}
    assert load_config(environ=environ)["disable"] == Value(
        ("c", "a", "b"), f"env TJ_DISABLE, {file} [tool.tj]"
    )
    assert load_config(environ={"TJ_DISABLE": "c"}).core.disable == ("c",)
    assert load_config(environ={"TJ_DISABLE": ""}).core.disable == ()


# ------------------------------------------------------------------------------- core keys


@pytest.mark.parametrize("text", ["1", "true", "ON", "yes", "True"])
def test_true_in_the_environment(text: str) -> None:
    assert from_env(TJ_STRICT=text).core.strict is True


@pytest.mark.parametrize("text", ["0", "false", "OFF", "no", "False"])
def test_false_in_the_environment(text: str) -> None:
    assert from_env(TJ_MEMO=text).core.memo is False


@pytest.mark.parametrize("text", ["", "2", "y", "maybe"])
def test_other_booleans_in_the_environment_are_errors(text: str) -> None:
    with pytest.raises(ConfigError, match=r"env TJ_STRICT must be one of 1, true"):
        from_env(TJ_STRICT=text)


def test_lists_in_the_environment() -> None:
    assert from_env(TJ_PLUGINS="a, b,...").core.plugins == ("a", "b", "...")
    assert from_env(TJ_PLUGINS="").core.plugins == ()
    assert from_env(TJ_EXECUTORS="").core.executors == ()
    assert from_env().core.plugins is None


def test_other_types_in_the_environment() -> None:
    assert from_env(TJ_MAX_ENTRIES="7").core.max_entries == 7
    assert from_env(TJ_FRONTEND="fx").core.frontend == "fx"
    assert from_env(TJ_FRONTEND="").core.frontend is None
    with pytest.raises(ConfigError, match="env TJ_MAX_ENTRIES must be an integer"):
        from_env(TJ_MAX_ENTRIES="many")
    with pytest.raises(ConfigError, match="env TJ_CHECK must be one of 0, 1, 2, 3, 'sample'"):
        from_env(TJ_CHECK="4")
    assert from_env(TJ_CHECK="sample").core.check == "sample"


def test_every_core_key_can_come_from_the_environment() -> None:
    named = {"logs": "compile", "on_miss": "eager", "compile": "background"}
    texts = {**dict.fromkeys(CORE_KEYS, "1"), **named}
    config = from_env(**{f"TJ_{key.upper()}": text for key, text in texts.items()})
    assert {v.origin for _, v in config.items()} == {f"env TJ_{k.upper()}" for k in CORE_KEYS}


def test_an_unknown_key_is_an_error_with_file_and_advice(tmp_path: Path) -> None:
    file = project(tmp_path, '[tool.tj]\nplugin = ["a"]\n')
    with pytest.raises(ConfigError, match="Did you mean 'plugins'") as caught:
        load_config()
    assert str(file) in str(caught.value)
    assert "'plugin'" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "check = true",
        "check = 4",
        "memo = 1",
        "plugins = 'a'",
        "plugins = [1]",
        "max_entries = 1.5",
        "max_entries = 0",
        "frontend = 1",
        "plugins = {a = 1}",
    ],
)
def test_wrong_types_are_errors(tmp_path: Path, line: str) -> None:
    file = project(tmp_path, f"[tool.tj]\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert str(file) in str(caught.value)
    assert f"'{line.split()[0]}'" in str(caught.value)


def test_core_options_document_every_key() -> None:
    assert CoreOptions.__doc__
    for key in CORE_KEYS:
        assert f"- ``{key}``:" in CoreOptions.__doc__


# ------------------------------------------------------------------------------- plugins' options


@dataclass(frozen=True)
class Options:
    flag: bool = False
    count: int = 1
    rate: float = 0.5
    name: str = "n"
    names: list[str] | None = None
    sizes: tuple[int, ...] = ()
    pair: tuple[int, float] = (1, 1.0)
    mode: Literal["fast", "small"] = "fast"
    limit: int | None = None


def test_a_plugins_table(tmp_path: Path) -> None:
    file = project(tmp_path, "[tool.tj.x]\ncount = 2\nrate = 3\nsizes = [1, 2]\n")
    resolved = load_config().plugin_options("x", Options)
    assert resolved.options == Options(count=2, rate=3.0, sizes=(1, 2))
    assert resolved["count"] == Value(2, f"{file} [tool.tj.x]")
    assert dict(resolved.items())["flag"] == Value(False, "default")


def test_a_plugins_options_from_all_sources(tmp_path: Path) -> None:
    project(tmp_path, "[tool.tj.x]\ncount = 2\nrate = 3\nname = 'f'\nlimit = 1\n")
    environ = {"TJ_X_COUNT": "3", "TJ_X_NAMES": "a,b", "TJ_X_PAIR": "1,2", "TJ_X_LIMIT": "4"}
    config = load_config(overrides={"x": {"count": 4, "name": "o"}}, environ=environ)
    resolved = config.plugin_options("x", Options, call={"count": 5})
    made = resolved.options
    assert made == Options(count=5, rate=3.0, name="o", names=["a", "b"], pair=(1, 2.0), limit=4)
    assert resolved["count"].origin == "call"
    assert resolved["name"].origin == "call x"
    assert resolved["names"].origin == "env TJ_X_NAMES"


@dataclass(frozen=True)
class Freezing:
    freeze: bool = False


def test_an_option_that_is_called_like_a_core_key_is_what_that_says(tmp_path: Path) -> None:
    assert not load_config(overrides={}).plugin_options("x", Freezing).options.freeze
    project(tmp_path, "[tool.tj]\nfreeze = true\n")
    resolved = load_config().plugin_options("x", Freezing)
    assert resolved["freeze"] == Value(True, load_config()["freeze"].origin)
    environ = {"TJ_X_FREEZE": "0"}
    assert load_config(environ=environ).plugin_options("x", Freezing)["freeze"] == Value(
        False, "env TJ_X_FREEZE"
    )
    call = load_config(overrides={"freeze": False}).plugin_options("x", Freezing)
    assert call["freeze"] == Value(False, "call")


def test_a_dash_in_a_plugins_name_is_an_underscore_in_the_environment() -> None:
    config = from_env(TJ_MY_X_COUNT="3")
    assert config.plugin_options("my-x", Options).options.count == 3


def test_an_unknown_key_of_a_plugin_is_an_error(tmp_path: Path) -> None:
    file = project(tmp_path, "[tool.tj.x]\ncuont = 2\n")
    with pytest.raises(ConfigError, match=r"unknown key 'cuont'\. Did you mean 'count'") as caught:
        load_config().plugin_options("x", Options)
    assert f"{file} [tool.tj.x]" in str(caught.value)


def test_an_unknown_variable_of_a_plugin_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"env TJ_X_CUONT.*Did you mean 'count'"):
        from_env(TJ_X_CUONT="1").plugin_options("x", Options)


def test_variables_of_others_are_let_alone() -> None:
    config = from_env(TJ_X_Y_COUNT="1", TJ_MAX_ENTRIES="2", TJ_TRACE_HOOKS="0")
    config.plugin_options("x", Options, known=["x", "x-y"])
    config.plugin_options("max", Options)
    config.plugin_options("trace", Options)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("flag", 1, "true or false"),
        ("count", True, "an integer"),
        ("count", "1", "an integer"),
        ("rate", True, "a number"),
        ("name", 3, "a string"),
        ("names", ["a", 1], "a list of strings or nothing"),
        ("sizes", [1, "2"], "a list of integers"),
        ("pair", [1], "a list of integers and numbers"),
        ("mode", "slow", "one of 'fast', 'small'"),
        ("limit", "x", "an integer or nothing"),
    ],
)
def test_wrong_types_of_a_plugins_option(key: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=f"there: '{key}' must be {words}, not"):
        resolve(Options, [layer({key: value}, "there")])


def test_an_option_without_default_is_required() -> None:
    @dataclass(frozen=True)
    class Needs:
        path: str

    with pytest.raises(ConfigError, match="no value for 'path'"):
        resolve(Needs, [])


def test_what_the_class_refuses_is_a_config_error() -> None:
    @dataclass(frozen=True)
    class Even:
        n: int = 0

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError(f"n must be even, not {self.n}")

    with pytest.raises(ConfigError, match="there: n must be even, not 3"):
        resolve(Even, [layer({"n": 3}, "there")])


def test_only_frozen_dataclasses_of_supported_types_declare_options() -> None:
    @dataclass
    class Mutable:
        n: int = 0

    @dataclass(frozen=True)
    class Odd:
        n: dict[str, int] | None = None

    bad: Any
    for bad in (Mutable, Odd, dict, 3, Options()):
        with pytest.raises(TypeError):
            schema(bad)


def test_an_environment_value_reads_as_the_literal_it_names() -> None:
    assert env_layer(Options, "P_", {"P_MODE": "small"}) == {"mode": Value("small", "env P_MODE")}


def test_tables_of_unknown_plugins_are_errors(tmp_path: Path) -> None:
    file = project(tmp_path, "[tool.tj.inductr]\nn = 1\n")
    with pytest.raises(ConfigError, match="Did you mean 'inductor'") as caught:
        load_config().check_tables(["inductor"])
    assert str(file) in str(caught.value)
    load_config().check_tables(["inductr"])
    with pytest.raises(ConfigError, match="call: option 'x' belongs to no installed plugin"):
        load_config(overrides={"x": {"n": 1}}).check_tables(["inductr"])


# ------------------------------------------------------------------------------- unknown variables


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TJ_CHEK", "TJ_CHECK"),
        ("TJ_CHECKS", "TJ_CHECK"),
        ("TJ_PLUGIN", "TJ_PLUGINS"),
        ("TJ_INDUCTER_THREADS", "TJ_INDUCTOR_THREADS"),
        ("TJ_CONFIGS", "TJ_CONFIG"),
    ],
)
def test_a_misspelt_variable_is_an_error(variable: str, meant: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_env(**{variable: "1"}).check_environment(["inductor", "torch"])
    assert error.value.message == (f"env {variable}: tj has no such key. Did you mean {meant!r}?")


def test_a_variable_like_none_is_a_warning() -> None:
    with pytest.warns(TjWarning) as found:
        from_env(TJ_HOMEPAGE="1").check_environment(["torch"])
    assert [str(w.message) for w in found] == ["tj: env TJ_HOMEPAGE: tj has no such key."]


def test_variables_that_mean_something() -> None:
    names = ("TJ_CHECK", "TJ_TORCH_MEMO_SIZE", "TJ_FULL", "TJ_FUZZ_FX", "PATH", "TJX")
    from_env(**dict.fromkeys(names, "1")).check_environment(["torch"])
    config = from_env(TJ_CONFIG="")
    config.check_environment([])
