"""Selecting, ordering and loading plugins, and attribution of their errors."""

from __future__ import annotations

import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from tj_core.errors import (
    ConfigError,
    PluginConflictError,
    PluginError,
    TjError,
    TjWarning,
)
from tj_core.host import hookspecs
from tj_core.host.config import load_config
from tj_core.host.discovery import core_version
from tj_core.host.hookspecs import hookimpl
from tj_core.host.plugins import PluginManager, split_plugins
from tj_core.ir.tags import Tag
from tj_core.testing.plugins import FakeDist
from tj_core.testing.plugins import load_plugins as manager
from tj_core.testing.plugins import plugin_object as plugin

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_project")


def failure(*args: Any, kind: type[TjError] = PluginError, **keys: Any) -> str:
    with pytest.raises(kind) as caught:
        manager(*args, **keys)
    return str(caught.value)


# ------------------------------------------------------------------------------- selection


def test_by_default_all_are_loaded_by_name(fake_dist: FakeDist) -> None:
    for name in ("b", "c", "a"):
        fake_dist(name)
    made = manager()
    assert made.names == ("a", "b", "c")
    assert [s.order for s in made.states] == [0, 1, 2]
    assert not any(s.requested for s in made.states)


def test_declared_priority_goes_before_name(fake_dist: FakeDist) -> None:
    fake_dist("a")
    fake_dist("b", "TJ_PRIORITY = 5")
    fake_dist("c", "TJ_PRIORITY = -1")
    assert manager().names == ("b", "a", "c")


def test_the_config_orders(fake_dist: FakeDist) -> None:
    for name in "abcd":
        fake_dist(name, "TJ_PRIORITY = 9" if name == "b" else "")
    assert manager("c", "...", "a").names == ("c", "b", "d", "a")
    assert manager("d", "b").names == ("d", "b")


def test_what_is_not_listed_is_not_imported(fake_dist: FakeDist) -> None:
    fake_dist("a")
    fake_dist("boom", "raise RuntimeError")
    made = manager("a")
    assert made.state("boom").state == "installed"
    assert "call" in made.state("boom").reason
    assert "fake_boom" not in sys.modules


def test_an_empty_list_is_no_plugin(fake_dist: FakeDist) -> None:
    fake_dist("a")
    assert manager(environ={"TJ_PLUGINS": ""}).names == ()


def test_hooks_are_called_in_order(fake_dist: FakeDist, hook_calls: list[tuple[str, str]]) -> None:
    for name in "abc":
        fake_dist(name, "@hookimpl\ndef tj_transforms(): return ()")
    manager("c", "a", "b").transforms()
    called = [name for name, hook in hook_calls if hook == "tj_transforms"]
    assert called == ["c", "a", "b"]


def test_blocked_plugins_are_never_imported(fake_dist: FakeDist) -> None:
    fake_dist("a")
    fake_dist("boom", "raise RuntimeError")
    made = manager(environ={"TJ_DISABLE": "boom"})
    assert made.names == ("a",)
    assert made.state("boom").state == "blocked"
    assert made.state("boom").reason == "disabled by env TJ_DISABLE"
    assert "fake_boom" not in sys.modules


@pytest.mark.parametrize("key", ["plugins", "disable"])
def test_unknown_names_are_errors(fake_dist: FakeDist, key: str) -> None:
    fake_dist("inductor")
    text = failure(environ={f"TJ_{key.upper()}": "inductr"})
    assert "Did you mean 'inductor'?" in text
    assert f"env TJ_{key.upper()}" in text
    assert "installed plugins: inductor" in text


def test_unknown_variables_are_errors(fake_dist: FakeDist) -> None:
    text = failure(environ={"TJ_PLUGINZ": "a"}, kind=ConfigError)
    assert "env TJ_PLUGINZ: tj has no such key. Did you mean 'TJ_PLUGINS'?" in text


def test_a_name_listed_twice_is_an_error(fake_dist: FakeDist) -> None:
    fake_dist("a")
    assert "'a' stands twice" in failure("a", "...", "a", kind=ConfigError)
    assert "'...' stands twice" in failure("...", "a", "...", kind=ConfigError)


def test_a_stronger_source_may_disable_what_a_weaker_one_names(
    fake_dist: FakeDist, tmp_path: Path
) -> None:
    fake_dist("a")
    fake_dist("b")
    (tmp_path / "pyproject.toml").write_text('[tool.tj]\nplugins = ["a", "b"]\n', "utf-8")
    assert manager(environ={"TJ_DISABLE": "a"}).names == ("b",)
    text = failure("a", kind=ConfigError, environ={"TJ_DISABLE": "a"})
    assert "asked for by call and disabled by env TJ_DISABLE" in text
    assert manager("a", disable=[], environ={"TJ_DISABLE": "a"}).names == ("a",)


def test_ranks_follow_the_config_and_else_the_declared_priority(fake_dist: FakeDist) -> None:
    for name, priority in {"a": 0, "b": 7, "c": -3, "d": 0, "e": 0}.items():
        fake_dist(name, f"TJ_PRIORITY = {priority}")
    made = manager("e", "a", "...", "d")
    ranks = [made.rank(name) for name in made.names]
    assert made.names == ("e", "a", "b", "c", "d")
    assert ranks == sorted(set(ranks), reverse=True)
    assert (made.rank("b"), made.rank("c")) == (7, -3)


def test_one_name_for_an_object_and_a_distribution_is_an_error(fake_dist: FakeDist) -> None:
    fake_dist("a", version="3.1")
    text = failure(plugin("a"), kind=PluginConflictError)
    assert "plugin 'a' (tj-a 3.1)" in text
    assert "plugin 'a' (inline)" in text
    text = failure(plugin("x"), plugin("x"), kind=PluginConflictError)
    assert "two plugins are called 'x'" in text


def test_two_distributions_with_one_name_are_an_error(fake_dist: FakeDist) -> None:
    fake_dist("a", distribution="tj-one", version="1.5")
    fake_dist("a", distribution="tj-two", version="2.5")
    text = failure(kind=PluginConflictError)
    assert "tj-one 1.5" in text
    assert "tj-two 2.5" in text


# ------------------------------------------------------------------------------- plugin objects


def test_objects_and_names_mix(fake_dist: FakeDist) -> None:
    fake_dist("a")
    fake_dist("b")
    made = manager("b", plugin("mine"), "...")
    assert made.names == ("b", "mine", "a")
    state = made.state("mine")
    assert (state.distribution, state.requested) == ("inline", True)


def test_an_object_alone_keeps_the_installed_ones_out(fake_dist: FakeDist) -> None:
    fake_dist("a")
    assert manager(plugin("mine")).names == ("mine",)


def test_a_module_or_class_has_its_own_name() -> None:
    module = types.ModuleType("my_module")
    assert manager(module).names == ("my_module",)


def test_an_object_without_a_name_is_an_error() -> None:
    assert 'tj_name = "..."' in failure(object())


def test_a_text_is_no_list_of_plugins() -> None:
    with pytest.raises(ConfigError):
        split_plugins("torch")


# ------------------------------------------------------------------------------- failures


def test_a_requested_broken_plugin_is_an_error(fake_dist: FakeDist) -> None:
    fake_dist("bad", "import fake_missing_library", version="1.2")
    with pytest.raises(PluginError) as caught:
        manager("bad")
    text = str(caught.value)
    for part in (
        "plugin 'bad' (tj-bad 1.2)",
        "bad = fake_bad",
        f"tj-core {core_version()}",
        "ModuleNotFoundError",
        'disable = ["bad"]',
        "TJ_DISABLE=bad",
    ):
        assert part in text
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_installed_broken_plugin_is_one_warning_and_a_record(fake_dist: FakeDist) -> None:
    fake_dist("bad", "import fake_missing_library")
    fake_dist("good")
    with pytest.warns(TjWarning, match="disable = ") as caught:
        made = manager()
    assert len(caught) == 1
    assert made.names == ("good",)
    state = made.state("bad")
    assert state.state == "failed"
    assert "fake_missing_library" in state.reason
    assert isinstance(state.error, PluginError)
    assert isinstance(state.error.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit('usage: ...')",
        "@hookimpl\ndef tj_available(): raise SystemExit('usage: ...')",
    ],
)
def test_a_plugin_that_exits_is_broken(fake_dist: FakeDist, source: str) -> None:
    fake_dist("bad", source)
    with pytest.warns(TjWarning, match=r"plugin 'bad' \(tj-bad 1.0\).*SystemExit.*usage: \.\.\."):
        assert manager().state("bad").state == "failed"
    assert "SystemExit" in failure("bad")


def test_dots_request_nobody(fake_dist: FakeDist) -> None:
    fake_dist("bad", "import fake_missing_library")
    with pytest.warns(TjWarning):
        assert manager("...").state("bad").requested is False


def test_strict_makes_every_broken_plugin_an_error(fake_dist: FakeDist) -> None:
    fake_dist("bad", "import fake_missing_library")
    assert "plugin 'bad'" in failure(environ={"TJ_STRICT": "1"})


def test_unavailable_is_a_state(fake_dist: FakeDist) -> None:
    fake_dist("gpu", "@hookimpl\ndef tj_available(): return 'no CUDA device'")
    made = manager(environ={"TJ_STRICT": "1"})
    assert made.names == ()
    assert (made.state("gpu").state, made.state("gpu").reason) == (
        "unavailable",
        "no CUDA device",
    )
    assert made.state("gpu").hooks == ("tj_available",)


def test_requesting_an_unavailable_plugin_is_an_error(fake_dist: FakeDist) -> None:
    fake_dist("gpu", "@hookimpl\ndef tj_available(): return 'no CUDA device'")
    text = failure("gpu")
    assert "plugin 'gpu' (tj-gpu 1.0) is asked for but not available: no CUDA device" in text


def test_no_other_hook_of_an_unavailable_plugin_is_called(
    hook_calls: list[tuple[str, str]], fake_dist: FakeDist
) -> None:
    fake_dist(
        "gpu",
        "@hookimpl\ndef tj_available(): return 'no'\n@hookimpl\ndef tj_options(): raise OSError",
    )
    made = manager()
    assert made.tags() == ()
    assert hook_calls == [("gpu", "tj_available")]


@pytest.mark.parametrize("answer", [True, "", 3])
def test_a_reason_is_a_text(answer: object) -> None:
    assert "must return None or a reason" in failure(plugin("x", tj_available=answer))


def test_another_plugin_api_refuses_to_load() -> None:
    text = failure(types.SimpleNamespace(tj_name="old", TJ_PLUGIN_API=0))
    assert "plugin API 0" in text
    assert f"tj-core {core_version()} has plugin API {hookspecs.PLUGIN_API}" in text
    same = types.SimpleNamespace(tj_name="new", TJ_PLUGIN_API=hookspecs.PLUGIN_API)
    assert manager(same).names == ("new",)


def test_priority_is_an_integer() -> None:
    text = failure(types.SimpleNamespace(tj_name="x", TJ_PRIORITY="high"))
    assert "TJ_PRIORITY must be an integer" in text


def test_a_core_key_is_no_plugin_name() -> None:
    assert "no plugin can have that name" in failure(plugin("check"))


def test_an_unknown_hook_is_an_error_with_advice() -> None:
    @hookimpl
    def tj_executers() -> tuple[()]:
        return ()

    text = failure(types.SimpleNamespace(tj_name="x", tj_executers=tj_executers))
    assert "plugin 'x'" in text
    assert "unknown hook 'tj_executers'. Did you mean 'tj_executors'?" in text


def test_an_unknown_hook_may_be_optional() -> None:
    @hookimpl(optionalhook=True)
    def tj_of_the_future() -> None: ...

    extra = types.SimpleNamespace(tj_name="x", tj_of_the_future=tj_of_the_future)
    assert manager(extra).state("x").hooks == ()


def test_a_hook_without_its_mark_is_an_error(fake_dist: FakeDist) -> None:
    fake_dist("x", "def tj_executors(options): return ()")
    assert "tj_executors is not marked with @hookimpl" in failure("x")


def test_an_imported_helper_is_no_unmarked_hook(fake_dist: FakeDist) -> None:
    fake_dist("x", "from tj_core.host.hookspecs import tj_executors")
    assert manager("x").names == ("x",)


@pytest.mark.parametrize("mark", ["tryfirst", "trylast", "hookwrapper"])
def test_order_of_its_own_is_refused(mark: str) -> None:
    marks: Any = {mark: True}

    def tj_tags() -> Any:
        yield

    tj_tags = hookimpl(**marks)(tj_tags)
    assert mark in failure(types.SimpleNamespace(tj_name="x", tj_tags=tj_tags))


def test_a_hook_implemented_twice_is_an_error() -> None:
    @hookimpl(specname="tj_tags")
    def more() -> tuple[()]:
        return ()

    twice = plugin("x", tj_tags=())
    twice.more = more
    assert "implements tj_tags twice" in failure(twice)


def test_an_unknown_argument_is_an_error() -> None:
    @hookimpl
    def tj_tags(option: object) -> tuple[()]:
        return ()

    text = failure(types.SimpleNamespace(tj_name="x", tj_tags=tj_tags))
    assert "'option'" in text
    assert "plugin 'x'" in text


def test_loading_is_transactional(fake_dist: FakeDist) -> None:
    fake_dist(
        "bad",
        """
        @hookimpl
        def tj_tags(): raise AssertionError("asked")
        @hookimpl
        def tj_options(): return int
        """,
    )
    fake_dist(
        "good", "from tj_core.ir.tags import Tag\n@hookimpl\ndef tj_tags(): return (Tag('T'),)"
    )
    with pytest.warns(TjWarning, match="must be a frozen dataclass"):
        made = manager()
    assert made.tags() == (("good", Tag("T")),)


def test_a_target_may_be_an_object_in_a_module(fake_dist: FakeDist) -> None:
    fake_dist(
        "x",
        """
        from tj_core.ir.tags import Tag
        class Plugin:
            @hookimpl
            def tj_tags(self): return (Tag("T"),)
        it = Plugin()
        """,
        target="fake_x:it",
    )
    made = manager("x")
    assert made.tags() == (("x", Tag("T")),)
    assert made.state("x").file.endswith("fake_x.py")


def test_a_lenient_manager_records_instead_of_raising(fake_dist: FakeDist) -> None:
    fake_dist("bad", "raise OSError('no')")
    fake_dist("good")
    config = load_config(overrides={"plugins": ["bad", "good"], "required": ["tj-none"]})
    made = PluginManager(config, lenient=True)
    assert made.names == ("good",)
    assert made.state("bad").state == "failed"
    assert len(made.problems) == 2


# ------------------------------------------------------------------------------- config of plugins

OPTIONS = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Options:
    threads: int = 1
@hookimpl
def tj_options(): return Options
"""


def test_a_table_is_validated_by_its_plugin(fake_dist: FakeDist, tmp_path: Path) -> None:
    fake_dist("x", OPTIONS)
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.tj.x]\nthreads = 2\n", "utf-8")
    assert manager().options("x").threads == 2
    file.write_text("[tool.tj.x]\nthread = 2\n", "utf-8")
    text = failure(kind=ConfigError)
    assert "unknown key 'thread'. Did you mean 'threads'?" in text
    assert str(file) in text


def test_a_plugin_without_options_has_no_keys(fake_dist: FakeDist) -> None:
    fake_dist("x")
    assert manager().options("x") is None
    assert "unknown key 'n'" in failure(kind=ConfigError, x={"n": 1})


@pytest.mark.parametrize("keys", [{"disable": ["x"]}, {"plugins": []}])
def test_a_table_of_a_plugin_that_takes_no_part_is_legal(
    fake_dist: FakeDist, keys: dict[str, Any]
) -> None:
    fake_dist("x", OPTIONS)
    manager(x={"anything": 1}, **keys)


def test_a_table_of_an_unknown_plugin_is_an_error(fake_dist: FakeDist) -> None:
    fake_dist("inductor")
    assert "Did you mean 'inductor'?" in failure(kind=ConfigError, inductr={"n": 1})


def test_required_is_checked(fake_dist: FakeDist) -> None:
    fake_dist("x", version="1.2")
    manager(required=["tj-x>=1,<2", "tj-none; python_version < '3'"])
    text = failure(required=["tj-x>=2"])
    assert "'tj-x>=2'" in text
    assert "installed is 1.2" in text
    assert "call" in text
    assert "installed is none" in failure(required=["tj-none"])
    assert "no requirement" in failure(kind=ConfigError, required=["no ! requirement"])


def test_minversion_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tj_core.host.requirements.core_version", lambda: "0.5")
    manager(minversion="0.5")
    assert "tj-core 0.6 or later, installed is 0.5" in failure(minversion="0.6")
    assert "not a version" in failure(kind=ConfigError, minversion="new")


def test_a_plugin_that_works_warns_of_nothing(fake_dist: FakeDist) -> None:
    fake_dist("x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager()
