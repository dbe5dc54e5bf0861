"""Records of plugins: collected once, validated, attributed; and each hook by itself."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tj_core.compile.transforms import Transform
from tj_core.contract.dialects import Dialect
from tj_core.contract.rules import RuleTable
from tj_core.errors import PluginConflictError, PluginError, RuleConflictError, TjWarning
from tj_core.host import hookspecs
from tj_core.host.config import CORE_KEYS
from tj_core.host.hookspecs import hookimpl
from tj_core.ir.stage import Stage
from tj_core.ir.tags import Tag
from tj_core.testing.plugins import FakeDist
from tj_core.testing.plugins import load_plugins as manager
from tj_core.testing.plugins import plugin_object as plugin

if TYPE_CHECKING:
    from tj_core.host.plugins import PluginManager

pytestmark = pytest.mark.usefixtures("own_project")

DOCS = Path(__file__).parents[3] / "docs" / "plugins.md"

OPTIONS = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Options:
    threads: int = 1
@hookimpl
def tj_options(): return Options
"""


def transform(name: str) -> Transform:
    return Transform(name, lambda trace, context: trace, Stage.ACQUIRED)


# ------------------------------------------------------------------------------- records


def test_each_hook_is_called_once() -> None:
    calls: list[object] = []

    @hookimpl
    def tj_tags(options: object) -> tuple[Tag, ...]:
        calls.append(options)
        return (Tag("T"),)

    made = manager(types.SimpleNamespace(tj_name="x", tj_tags=tj_tags))
    assert made.tags() is made.tags()
    assert calls == [None]


@pytest.mark.parametrize("result", [None, Tag("T"), [Tag("T")], (Tag("T"), "U"), "T", (Tag(""),)])
def test_return_values_are_validated(result: object) -> None:
    made = manager(plugin("x", tj_tags=result))
    with pytest.raises(PluginError, match=r"plugin 'x'.*tj_tags must return a tuple of Tag, not"):
        made.tags()


def test_an_exception_in_a_hook_names_its_plugin(fake_dist: FakeDist) -> None:
    fake_dist("bad", "@hookimpl\ndef tj_tags(): raise KeyError('lost')", version="1.2")
    made = manager()
    with pytest.raises(PluginError) as caught:
        made.tags()
    text = str(caught.value)
    for part in ("plugin 'bad' (tj-bad 1.2)", "tj_tags", "KeyError: 'lost'", "TJ_DISABLE=bad"):
        assert part in text
    assert isinstance(caught.value.__cause__, KeyError)


def test_two_records_with_one_name_are_an_error(fake_dist: FakeDist) -> None:
    source = "from tj_core.ir.tags import Tag\n@hookimpl\ndef tj_tags(): return (Tag('T'),)"
    fake_dist("a", source, version="1.1")
    fake_dist("b", source, version="2.2")
    with pytest.raises(PluginConflictError) as caught:
        manager().tags()
    for part in ("Tag", "'T'", "plugin 'a' (tj-a 1.1)", "plugin 'b' (tj-b 2.2)"):
        assert part in str(caught.value)


def test_one_plugin_may_not_use_a_name_twice() -> None:
    with pytest.raises(PluginConflictError):
        manager(plugin("x", tj_transforms=(transform("t"), transform("t")))).transforms()


def test_two_dialects_of_one_namespace_are_an_error() -> None:
    dialects = tuple(Dialect("n", (), lambda symbol: print) for _ in "ab")
    with pytest.raises(PluginConflictError, match="namespace 'n'"):
        manager(plugin("x", tj_dialects=dialects)).dialects()


def test_wrappers_observe(fake_dist: FakeDist) -> None:
    seen: list[object] = []

    @hookimpl(wrapper=True)
    def tj_tags() -> Any:
        results = yield
        seen.append(results)
        return results

    watcher = types.SimpleNamespace(tj_name="w", tj_tags=tj_tags)
    tags = (Tag("A"),), (Tag("B"),)
    made = manager(plugin("a", tj_tags=tags[0]), watcher, plugin("b", tj_tags=tags[1]))
    assert [name for name, _ in made.tags()] == ["a", "b"]
    assert seen == [[tags[0]], [tags[1]]]


def test_a_failing_wrapper_is_blamed_itself() -> None:
    @hookimpl(wrapper=True)
    def tj_tags() -> Any:
        yield
        raise OSError("mine")

    watcher = types.SimpleNamespace(tj_name="w", tj_tags=tj_tags)
    with pytest.raises(PluginError, match="plugin 'w' failed in its wrapper around hook tj_tags"):
        manager(watcher, plugin("a", tj_tags=())).tags()


def test_a_failure_below_a_wrapper_is_not_the_wrappers() -> None:
    @hookimpl(wrapper=True, specname="tj_tags")
    def watch() -> Any:
        return (yield)

    @hookimpl
    def tj_tags() -> Any:
        raise OSError("theirs")

    watcher = types.SimpleNamespace(tj_name="w", watch=watch)
    bad = types.SimpleNamespace(tj_name="a", tj_tags=tj_tags)
    with pytest.raises(PluginError, match=r"plugin 'a' \(inline\) failed in hook tj_tags"):
        manager(watcher, bad).tags()


def test_trace_hooks_prints_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    manager(plugin("x", tj_tags=()), environ={"TJ_TRACE_HOOKS": "1"}).tags()
    assert re.search(r"^tj: x\.tj_tags -> \(\) \(\d+\.\d\d ms\)$", capsys.readouterr().err, re.M)


def test_without_trace_hooks_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    manager(plugin("x", tj_tags=())).tags()
    assert capsys.readouterr() == ("", "")


def test_hooks_and_file_of_a_plugin_are_recorded(fake_dist: FakeDist) -> None:
    folder = fake_dist(
        "x", "@hookimpl\ndef tj_tags(): return ()\n@hookimpl\ndef tj_dialects(): return ()"
    )
    state = manager().state("x")
    assert state.hooks == ("tj_dialects", "tj_tags")
    assert state.file == str(folder / "fake_x.py")
    assert state.target == "fake_x"


TABLE = """
from tj_core.contract.rules import RuleTable
table = RuleTable("t")
table.set("torch.add", __name__)
@hookimpl
def tj_rule_tables(): return (table,)
"""


def test_rules_of_equal_rank_conflict_until_the_project_orders_them(fake_dist: FakeDist) -> None:
    def merged(made: PluginManager) -> RuleTable[Any]:
        one, two = (t.stamped(p, made.rank(p)) for p, t in made.rule_tables())
        return one | two

    fake_dist("a", TABLE)
    fake_dist("b", TABLE)
    with pytest.raises(RuleConflictError, match="order the two plugins"):
        merged(manager())
    assert [rule.plugin for rule in merged(manager("b", "a"))] == ["b"]


# ------------------------------------------------------------------------------- one test a hook


def test_hook_tj_available(fake_dist: FakeDist) -> None:
    fake_dist("x", "@hookimpl\ndef tj_available(): return None")
    assert manager("x").names == ("x",)


def test_hook_tj_lacking(fake_dist: FakeDist) -> None:
    fake_dist("x", "@hookimpl\ndef tj_lacking(): return 'PyTorch 9 was not tested'")
    fake_dist("y", "@hookimpl\ndef tj_lacking(): return None")
    fake_dist("z", "@hookimpl\ndef tj_lacking(): return 9")
    made = manager("x", "y", "z")
    assert made.lacking("x") == "PyTorch 9 was not tested"
    assert made.lacking("y") == ""
    with pytest.raises(PluginError, match="tj_lacking of z must return None or text, not 9"):
        made.lacking("z")


def test_executors_that_fail_are_left_out(fake_dist: FakeDist) -> None:
    """A failure of tj_executors is a warning; an error for a named plugin, and in strict mode."""
    fake_dist("x", "@hookimpl\ndef tj_executors(): raise ImportError('no name')")
    fake_dist("y", "@hookimpl\ndef tj_executors(): return ()")
    made = manager()
    with pytest.warns(TjWarning, match=r"plugin 'x'.*tj_executors: ImportError: no name"):
        assert made.executors() == ()
    with pytest.raises(PluginError, match="no name"):
        manager("x").executors()
    with pytest.raises(PluginError, match="no name"):
        manager(strict=True).executors()


def test_hook_tj_options(fake_dist: FakeDist) -> None:
    fake_dist("x", OPTIONS + "\n@hookimpl\ndef tj_tags(options): return options.threads * ()")
    made = manager(x={"threads": 3})
    assert made.tags() == ()
    resolved = made.resolved_options("x")
    assert resolved is not None
    assert resolved["threads"].origin == "call x"


def test_hook_tj_frontends(fake_dist: FakeDist) -> None:
    fake_dist(
        "x", "@hookimpl\ndef tj_frontends(): return (Frontend('f', callable, lambda f, j: f),)"
    )
    ((name, record),) = manager().frontends()
    assert (name, record.name) == ("x", "f")


def test_hook_tj_dialects(fake_dist: FakeDist) -> None:
    fake_dist("x", "@hookimpl\ndef tj_dialects(): return (Dialect('n', (), lambda s: print),)")
    ((name, record),) = manager().dialects()
    assert (name, record.namespace) == ("x", "n")


def test_hook_tj_rule_tables() -> None:
    tables: tuple[RuleTable[Any], ...] = (RuleTable("grad"), RuleTable("grad"))
    assert manager(plugin("x", tj_rule_tables=tables)).rule_tables() == (
        ("x", tables[0]),
        ("x", tables[1]),
    )


def test_hook_tj_tags() -> None:
    assert manager(plugin("x", tj_tags=(Tag("T"),))).tags() == (("x", Tag("T")),)


def test_hook_tj_transforms() -> None:
    record = transform("t")
    assert manager(plugin("x", tj_transforms=(record,))).transforms() == (("x", record),)


def test_hook_tj_executors(fake_dist: FakeDist) -> None:
    fake_dist(
        "x",
        """
        from tj_core.contract.rules import RuleTable
        @hookimpl
        def tj_executors(): return (Executor("e", RuleTable("claim")),)
        """,
    )
    ((name, record),) = manager().executors()
    assert (name, record.name) == ("x", "e")


def test_hook_tj_findings(fake_dist: FakeDist) -> None:
    fake_dist("x", "@hookimpl\ndef tj_findings(every): return (Finding('x', str(every)),)")
    fake_dist("y", "@hookimpl\ndef tj_findings(): return 'all is well'")
    (x, one), (y, two) = manager().findings(None, every=True, names=False)
    assert (x, one.text, one.state, one.remedy) == ("x", "True", "good", "")
    assert (y, two.state) == ("y", "bad")
    assert "plugin 'y' (tj-y 1.0): tj_findings must return a tuple of Finding" in two.text


def test_hook_tj_cli_commands(fake_dist: FakeDist) -> None:
    fake_dist(
        "x",
        """
        @hookimpl
        def tj_cli_commands():
            return (CliCommand("demo", "help", lambda parser: None, lambda args, session: 0),)
        """,
    )
    ((name, record),) = manager().cli_commands()
    assert (name, record.name) == ("x", "demo")


# ------------------------------------------------------------------------------- meta


def hooks() -> dict[str, Any]:
    """A plugin that implements every hook."""
    return {n: f for n, f in vars(hookspecs).items() if hasattr(f, "tj_spec")}


@pytest.mark.parametrize("name", hooks())
def test_every_hook_has_a_test(name: str) -> None:
    tests = "\n".join(f.read_text("utf-8") for f in Path(__file__).parents[1].rglob("test_*.py"))
    assert f"def test_hook_{name}(" in tests


@pytest.mark.parametrize("name", hooks())
def test_every_hook_is_documented_with_its_signature(name: str) -> None:
    arguments = ", ".join(inspect.signature(hooks()[name]).parameters)
    assert f"\n### `{name}({arguments})`\n" in DOCS.read_text("utf-8")


@pytest.mark.parametrize("name", hooks())
def test_every_hook_says_when_and_since(name: str) -> None:
    doc = inspect.getdoc(hooks()[name]) or ""
    assert "Called " in doc
    assert "Since " in doc


def test_every_core_key_is_documented() -> None:
    text = DOCS.read_text("utf-8")
    assert not [key for key in CORE_KEYS if f"| `{key}` |" not in text]


def test_core_imports_neither_torch_nor_pytest_nor_rich() -> None:
    code = (
        "import sys, tj_core.cli.main, tj_core.host.plugins; "
        "assert not {'torch', 'pytest', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def blocks(language: str) -> list[str]:
    """The examples of the page on plugins."""
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCS.read_text("utf-8"), re.M | re.S)


def test_the_first_example_is_a_plugin(fake_dist: FakeDist) -> None:
    fake_dist("halves", blocks("python")[0])
    made = manager("halves", halves={"prefix": "H"})
    assert [tag.name for _, tag in made.tags()] == ["H_OK"]


def test_the_second_example_is_a_plugin_object() -> None:
    made: dict[str, Any] = {"hookimpl": hookimpl, "Tag": Tag}
    exec(blocks("python")[1], made)
    assert "marks" in made["session"].plugins.names
    assert made["session"].tags.require("MARKED", "proxy", None).name == "MARKED"


def test_a_tag_of_tjs_own_cannot_be_registered_again(fake_dist: FakeDist) -> None:
    fake_dist("x", "@hookimpl\ndef tj_tags(): return (Tag('SAVE', 'mine'),)", version="2.0")
    message = r"plugin 'x' \(tj-x 2.0\) registers the tag 'SAVE', which is tj's own"
    with pytest.raises(PluginConflictError, match=message) as error:
        manager("x").tags()
    assert 'disable = ["x"]' in error.value.hint
