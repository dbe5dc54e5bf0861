"""Sessions: records of plugins, ready for use; no shared state, no session at import."""

from __future__ import annotations

import sys

import pytest
from tj_core.compile.transforms import Transform
from tj_core.contract.dialects import Dialect
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.rules import RuleTable
from tj_core.errors import (
    ConfigError,
    PluginConflictError,
    PluginError,
    RuleConflictError,
    TagError,
)
from tj_core.host.frontends import Frontend
from tj_core.host.hookspecs import hookimpl
from tj_core.host.session import Session, current_session
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Context, Symbol
from tj_core.ir.tags import Tag
from tj_core.ir.trace import BoundSymbol
from tj_core.namespaces import Namespace
from tj_core.testing.numeric import MEANING, NullPlugin, NumericPlugin


class Plugin:
    """An inline plugin with the given records."""

    def __init__(self, name, **records):
        self.tj_name = name
        self.records = records

    @hookimpl
    def tj_tags(self):
        return self.records.get("tags", ())

    @hookimpl
    def tj_rule_tables(self):
        return self.records.get("tables", ())

    @hookimpl
    def tj_frontends(self):
        return self.records.get("frontends", ())

    @hookimpl
    def tj_transforms(self):
        return self.records.get("transforms", ())

    @hookimpl
    def tj_executors(self):
        return self.records.get("executors", ())

    @hookimpl
    def tj_dialects(self):
        return self.records.get("dialects", ())


def table(name, key, value):
    made = RuleTable(name)
    made.set(key, value)
    return made


def executor(name, fallback=False):
    return Executor(name, RuleTable("claim"), fallback=fallback)


@pytest.mark.usefixtures("own_project")
def test_a_session_without_plugins(only_fake_dists):
    session = Session(plugins=[])
    assert session.executors == session.frontends == session.transforms == ()
    assert set(session.tables) == {"expand", "context"}
    assert "SAVE" in {tag.name for tag in session.tags}
    with pytest.raises(PluginError, match=r"no frontend can capture .*frontends: none") as error:
        session.frontend_for(len)
    assert "pip install tj-torch" in error.value.hint


def test_tags_of_plugins_are_in_the_one_registry():
    session = Session(plugins=[Plugin("a", tags=(Tag("MINE"),))])
    assert session.tags["MINE"].name == "MINE"
    with pytest.raises(TagError, match="Did you mean 'MINE'"):
        session.tags.require("MIEN")
    with pytest.raises(PluginConflictError, match="two Tag records have the name 'MINE'") as error:
        Session(plugins=[Plugin(n, tags=(Tag("MINE"),)) for n in "ab"])
    assert 'give one of them another name; to do without it: disable = ["b"]' in error.value.hint


def test_tables_add_up_and_the_first_plugin_wins():
    first = Plugin("x", tables=(table("mine", "num.f", 1),))
    second = Plugin("y", tables=(table("mine", "num.f", 2), table("other", "num.g", 3)))
    session = Session(plugins=[first, second])
    rule = session.tables["mine"].get(Symbol("num", "f"))
    assert (rule.value, rule.plugin) == (1, "x")
    assert session.tables["other"].get(Symbol("num", "g")).plugin == "y"


def test_tables_are_frozen():
    session = Session(plugins=[Plugin("a", tables=(table("mine", "num.f", 1),))])
    with pytest.raises(RuleConflictError, match="'mine' is frozen"):
        session.tables["mine"].set("num.g", 2)
    with pytest.raises(RuleConflictError, match="'expand' is frozen"):
        session.expand.set("num.g", 2)


def test_contexts_are_spelled_by_their_table():
    spell = table("context", "context.mode", lambda value: f"mode({value})")
    session = Session(plugins=[Plugin("a", tables=(spell,))])
    assert session.language.enter(Context.of(mode=3)) == ("mode(3)",)


def test_what_runs_a_call_is_said_by_its_table():
    rules = table("runs_as", "math.floor", lambda call: max)
    session = Session(plugins=[Plugin("a", tables=(rules,))])
    assert session.language.entry(BoundSymbol(Symbol("math", "floor"))) is max
    assert session.language.entry(BoundSymbol(Symbol("math", "ceil"))) is None


def test_two_sessions_live_side_by_side():
    a, b = (Session(plugins=[NumericPlugin()]) for _ in range(2))
    assert a.tables is not b.tables
    assert a.executors is not b.executors


# ------------------------------------------------------------------------------- frontends


def frontend(name, accepts=True, priority=0):
    return Frontend(name, lambda fn: accepts, lambda fn, jitted: fn, priority)


def test_the_first_frontend_that_accepts_by_priority():
    records = frontend("a"), frontend("b", False, 9), frontend("c", priority=3)
    session = Session(plugins=[Plugin("p", frontends=records)])
    assert [f.name for f in session.frontends] == ["b", "c", "a"]
    assert session.frontend_for(len).name == "c"
    assert session.frontend_for(len, "a").name == "a"
    with pytest.raises(ConfigError, match=r"unknown frontend 'd'\..*"):
        session.frontend_for(len, "d")
    named = Session(plugins=[Plugin("p", frontends=records)], overrides={"frontend": "a"})
    assert named.frontend_for(len).name == "a"


def test_none_accepts():
    session = Session(plugins=[Plugin("p", frontends=(frontend("a", False),))])
    with pytest.raises(PluginError, match=r"frontends: a\)"):
        session.frontend_for(len)


# ------------------------------------------------------------------------------- pipelines


def test_transforms_are_ordered_by_priority_then_name_and_the_users_come_last():
    def transform(name, priority=0):
        return Transform(name, lambda t, c: t, Stage.ACQUIRED, priority=priority)

    plugin = Plugin("p", transforms=(transform("z"), transform("b", -1), transform("c", 5)))
    user = [transform("y"), transform("x"), transform("a", 9)]
    found = Session(plugins=[plugin]).pipeline(user).transforms
    assert [(r.plugin, r.transform.name) for r in found] == [
        ("p", "c"), ("p", "z"), ("p", "b"), ("user", "a"), ("user", "y"), ("user", "x"),
    ]  # fmt: skip


def test_transforms_follow_the_order_of_their_plugins():
    def plugin(name, priority):
        transforms = (Transform(name, lambda t, c: t, Stage.ACQUIRED, priority=priority),)
        return Plugin(name, transforms=transforms)

    found = Session(plugins=[plugin("late", 0), plugin("early", 9)]).pipeline().transforms
    assert [r.transform.name for r in found] == ["late", "early"]


def test_transforms_that_produce_a_stage_come_after_those_that_do_not():
    def plugin(name, produces=None):
        transform = Transform(name, lambda t, c: t, Stage.ACQUIRED, produces, priority=9)
        return Plugin(name, transforms=(transform,))

    plugins = [plugin("leaves", Stage.FUNCTIONAL), plugin("stays")]
    found = Session(plugins=plugins).pipeline().transforms
    assert [r.transform.name for r in found] == ["stays", "leaves"]


@pytest.mark.parametrize(
    ("wanted", "order"),
    [
        (None, "abp"),
        (["b"], "bp"),
        (["b", "..."], "bap"),
        (["...", "a"], "bpa"),
        (["p", "b"], "pb"),
        ([], "p"),
    ],
)
def test_executors_in_the_order_asked_for(wanted, order):
    records = executor("a"), executor("b"), executor("p", fallback=True)
    session = Session(plugins=[Plugin("q", executors=records)])
    assert "".join(e.name for e in session.pipeline((), wanted).executors) == order


def test_executors_of_ones_own():
    session = Session(
        plugins=[Plugin("q", executors=(executor("a"), executor("p", fallback=True)))]
    )
    mine = executor("mine")
    assert [e.name for e in session.pipeline((), [mine, "a"]).executors] == ["mine", "a", "p"]
    with pytest.raises(ConfigError, match=r"unknown executor 'c'\."):
        session.pipeline((), ["c"])


def test_executors_have_python_names():
    for name in ("my-exec", "class"):
        with pytest.raises(PluginError, match=f"executor '{name}' is no Python name"):
            Session(plugins=[Plugin("q", executors=(executor(name),))])


# ------------------------------------------------------------------------------- meaning


def test_claimed_symbols_mean_their_implementation():
    null = NullPlugin("num.add", answer=7)
    language = Session(plugins=[null, NumericPlugin()]).language
    assert language.resolve(Symbol("null", "num.add"))(1, 2) == 7
    assert language.resolve(Symbol("num", "add")) is MEANING["add"]
    assert language.prelude({"null", "num"}) == (
        "from tj_core.namespaces import null",
        "from tj_core.testing.numeric import num",
    )
    with pytest.raises(Exception, match="has no implementation"):
        language.resolve(Symbol("null", "num.mul"))


def test_an_executor_in_the_namespace_of_a_dialect_keeps_the_dialect():
    claims = table("claim", "num.add", Claim(None))
    plugin = Plugin("q", executors=(Executor("num", claims),),
                    dialects=(Dialect("num", (), lambda s: len),))  # fmt: skip
    assert Session(plugins=[plugin]).language.resolve(Symbol("num", "x")) is len


@pytest.mark.usefixtures("own_project")
def test_the_current_session_is_made_once_and_when_asked(monkeypatch, only_fake_dists):
    from tj_core.host import session

    monkeypatch.setattr(session, "_current", None)
    assert current_session() is current_session()
    assert session._current is current_session()


def test_namespaces_resolve_in_the_current_session(monkeypatch):
    from tj_core import namespaces
    from tj_core.host import session

    made = Session(plugins=[NullPlugin("num.add", answer=lambda a, b: a + b), NumericPlugin()])
    monkeypatch.setattr(session, "_current", made)
    assert isinstance(namespaces.null, Namespace)
    assert namespaces.null.num.add(1, 2) == 3
    with pytest.raises(AttributeError):
        _ = namespaces._private


def test_a_plugin_may_be_typed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ``python -c``, where ``__main__`` has no file."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    typed = type("Typed", (), {"tj_name": "typed", "__module__": "__main__"})
    assert Session(plugins=[typed()]).plugins.names == ("typed",)
