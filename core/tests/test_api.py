"""The functions a user types, on the numeric dialect."""

from __future__ import annotations

import pytest
import tj_core as tj
from tj_core.api import backend_state
from tj_core.compile.transforms import Transform
from tj_core.contract.decline import Decline
from tj_core.errors import ConfigError, TjError
from tj_core.host.jitted import Entry, Fallback, Jitted, jitted_of
from tj_core.source import Source
from tj_core.testing.numeric import NullPlugin, NumericPlugin, num


@pytest.fixture
def session():
    null = NullPlugin("num.mul", answer=num.mul)
    return tj.Session(plugins=[null, NumericPlugin()], overrides={"check": 2})


def plain(x, y):
    left, _ = (x * y).split(1)
    return -left, x.axpy(y, y)


def test_a_decorator_with_and_without_arguments(session, monkeypatch):
    from tj_core.host import session as sessions

    monkeypatch.setattr(sessions, "_current", session)
    for jitted in (tj.jit(plain), tj.jit()(plain), tj.jit(session=session)(plain)):
        assert jitted([1.0, 2.0], [3.0, 4.0]) == ([-3.0], [6.0, 12.0])
        assert jitted.__name__ == "plain"
        assert jitted_of(jitted).session is session


def test_jitting_twice_is_jitting_once(session):
    once = tj.jit(plain, session=session)
    twice = tj.jit(once, session=session)
    assert jitted_of(twice).fn is plain


def test_only_callables():
    with pytest.raises(TjError, match=r"tj.jit needs a function or a module, not int"):
        tj.jit(3)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"plugins": "numeric"}, "plugins must be a list of names and objects, not 'numeric'"),
        ({"plugins": {"numeric"}}, "plugins must be a list of names and objects, not a set"),
        ({"executors": "null"}, "executors must be a list of names and Executor records, not 'n"),
        ({"executors": [3]}, "executors must be a list of names and Executor records, not a list"),
        ({"transforms": [print]}, "transforms must be a list of Transform records, not a list"),
        ({"transforms": print}, "transforms must be a list of Transform records, not a builtin"),
        ({"dynamic": "yes"}, "dynamic must be True, False or None, not 'yes'"),
        ({"dynamic": 1}, "dynamic must be True, False or None, not 1"),
        ({"frontend": print}, "frontend must be a name, not a builtin_function_or_method"),
        ({"session": "numeric"}, "session must be a Session, not 'numeric'"),
    ],
)
def test_arguments_of_a_wrong_kind(argument, message):
    with pytest.raises(ConfigError, match=f"^tj.jit: {message}"):
        tj.jit(plain, **argument)
    with pytest.raises(ConfigError, match=f"^tj.jit: {message}"):
        tj.jit(**argument)


def test_plugins_to_disable_are_a_list():
    with pytest.raises(ConfigError, match="disable must be a list of names, not 'numeric'"):
        tj.Session(disable="numeric")


def test_kinds_of_traces(session):
    f = tj.jit(plain, session=session)
    f([1.0, 2.0], [3.0, 4.0])
    with pytest.raises(TjError, match=r"there is no kind of traces 'backwrd'\. Did you mean 'back"):
        tj.last_trace(f, "backwrd")
    with pytest.raises(TjError, match="there is no kind of traces 3"):
        tj.last_trace(f, 3)
    with pytest.raises(TjError, match="there is no backward trace: PyTorch's autograd"):
        tj.last_trace(f, "backward")
    with pytest.raises(TjError, match="there is no stage 4"):
        tj.last_trace(f, stage=4)


def test_traces(session):
    f = tj.jit(plain, session=session)
    with pytest.raises(TjError, match="plain has no trace: it has not been called"):
        tj.last_traces(f)
    f([1.0, 2.0], [3.0, 4.0])
    traces = tj.last_traces(f)
    assert [t.stage for t in traces] == [tj.Stage.ACQUIRED, tj.Stage.CLAIMED]
    assert tj.last_trace(f) is traces[-1]
    assert (
        tj.last_trace(f, stage="ACQUIRED") is tj.last_trace(f, stage=tj.Stage.ACQUIRED) is traces[0]
    )
    with pytest.raises(TjError, match=r"there is no stage 'CLAIMD'\. Did you mean 'CLAIMED'\?"):
        tj.last_trace(f, stage="CLAIMD")
    with pytest.raises(TjError, match="no trace at stage JOINT; there are: ACQUIRED, CLAIMED"):
        tj.last_trace(f, stage="JOINT")
    with pytest.raises(TjError, match="there is no backward trace"):
        tj.last_trace(f, "backward")


def test_calls_know_the_users_line(session):
    f = tj.jit(plain, session=session)
    f([1.0, 2.0], [3.0, 4.0])
    first = plain.__code__.co_firstlineno
    assert [c.source.line - first for c in tj.last_traces(f)[0].calls] == [1, 1, 2, 2]
    assert f"# test_api.py:{first + 1}\n" in str(tj.last_trace(f))


def test_a_failing_operation_names_the_users_line(session):
    f = tj.jit(lambda x: x.reciprocal(), session=session)
    assert f([2.0]) == [0.5]
    with pytest.raises(ZeroDivisionError) as error:
        f([0.0])
    (note,) = error.value.__notes__
    assert "num.reciprocal(x)" in note
    assert f"{__file__}:{f.__wrapped__.__code__.co_firstlineno} in <lambda>" in note


def test_explain_groups_declines() -> None:
    plugins = [NullPlugin("num.neg", check=lambda call: Decline("not today")), NumericPlugin()]
    f = tj.jit(lambda x: (-x) * -(x + x), session=tj.Session(plugins=plugins))
    f([1.0])
    found = tj.explain(f).declines()
    assert {key: len(calls) for key, calls in found.items()} == {
        ("null", "not today"): 2,
        ("null", "has no claim for it"): 2,
    }
    declines = str(tj.explain(f)).partition("declines:\n")[2].splitlines()
    assert [line.split("  ")[0] for line in declines] == ["executor", "null", "null"]
    assert ["not", "today", "2", "t"] in [line.split()[1:] for line in declines]


def test_explain(session):
    f = tj.jit(plain, session=session)
    with pytest.raises(TjError, match="has not been called"):
        tj.explain(f)
    f([1.0, 2.0], [3.0, 4.0])
    explained = tj.explain(f)
    assert explained.counts() == {"null": 2, "python": 3}
    lines = str(explained).partition("\n\ndeclines:")[0].splitlines()
    assert lines[0].split() == ["call", "operation", "executor", "declined", "by", "source"]
    assert lines[-2].split()[:3] == ["t_4_0", "num.mul", "null"]
    assert lines[-2].startswith("  ")
    assert any("(its body)" in line and "null: has no claim for num.axpy" in line for line in lines)
    jitted_of(f).stats.fallbacks = (Fallback("a loop", Source("f.py", 3)),)
    assert str(tj.explain(f)).endswith("without tj: a loop at f.py:3")


def test_stats_and_guards(session):
    f = tj.jit(plain, session=session)
    assert tj.guards(f) == ()
    assert tj.stats(f).calls == 0
    f([1.0, 2.0], [3.0, 4.0])
    f([1.0, 2.0], [3.0, 4.0])
    f([1.0, 2.0, 3.0], [3.0, 4.0, 5.0])
    stats = tj.stats(f)
    assert (stats.calls, stats.hits, stats.misses, stats.entries) == (3, 1, 2, 2)
    assert stats.compile_seconds == sum(stats.seconds.values()) > 0
    assert {"claim", "codegen"} <= set(stats.seconds)
    assert [str(g) for g in tj.guards(f)] == ["len(x) == 3", "len(y) == 3"]


def test_entries_come_and_go(session):
    state = jitted_of(tj.jit(plain, session=session))
    first, second = Entry(None), Entry(None)
    state.add(first)
    state.add(second)
    assert (state.last, state.stats.entries) == (second, 2)
    state.drop(second)
    state.drop(second)
    assert (state.last, state.stats.entries) == (first, 1)
    state.drop(first)
    assert state.last is None


@pytest.mark.parametrize("look", [tj.last_traces, tj.last_trace, tj.explain, tj.stats, tj.guards])
def test_what_is_not_jitted(look, session, monkeypatch):
    from tj_core.host import session as sessions

    monkeypatch.setattr(sessions, "_current", session)
    with pytest.raises(TjError, match="is not a jitted callable") as error:
        look(plain)
    assert "tj.jit" in error.value.hint


# ------------------------------------------------------------------------------- options


def test_options_make_a_session_of_their_own():
    f = tj.jit(plain, plugins=[NumericPlugin()], check=2)
    state = jitted_of(f)
    assert state.session.config.core.check == 2
    assert state.arguments["check"] == 2


def test_an_unknown_option_is_an_error(session):
    with pytest.raises(ConfigError, match=r"tj.jit has no option 'chekc'\. Did you mean 'check'\?"):
        tj.jit(plain, chekc=1)
    with pytest.raises(ConfigError, match="give session=, or plugins= and options, not both"):
        tj.jit(plain, session=session, check=1)
    with pytest.raises(ConfigError, match="autocast= needs a plugin"):
        tj.jit(plain, session=session, autocast="bfloat16")


def test_transforms_and_executors_of_ones_own(session):
    seen = []
    transform = Transform("look", lambda t, c: seen.append(c.plugin) or t, tj.Stage.ACQUIRED)
    f = tj.jit(plain, session=session, transforms=[transform], executors=[])
    f([1.0, 2.0], [3.0, 4.0])
    assert seen == ["user"]
    assert tj.explain(f).counts() == {"python": 4}


def test_another_object_is_jitted_in_the_same_way(session):
    state = jitted_of(tj.jit(plain, session=session, dynamic=True))
    other = jitted_of(state.again(lambda x: -x))
    assert other.session is session
    assert other.options == state.options
    assert other.name == "test_another_object_is_jitted_in_the_same_way.<locals>.<lambda>"
    assert (state.name, Jitted.name.fget(state)) == ("plain", "plain")


def test_a_state_for_another_system(session):
    state = backend_state(plain, session=session)
    assert (state.fn, state.session, state.arguments["transforms"]) == (plain, session, ())
    with pytest.raises(ConfigError, match="has no option 'mode'"):
        backend_state(plain, mode="fast")


def test_tag_does_nothing_outside_of_programs():
    value = object()
    assert tj.tag(value, "SAVE") is value


def test_the_public_names():
    assert set(tj.__all__) < set(dir(tj))
    for name in tj.__all__:
        assert getattr(tj, name) is not None
    with pytest.raises(AttributeError, match="module 'tj_core' has no attribute 'jti'"):
        _ = tj.jti


def test_the_authors_names():
    from tj_core import extend

    assert len(set(extend.__all__)) == len(extend.__all__)
    for name in extend.__all__:
        assert getattr(extend, name) is not None
    assert issubclass(extend.VerificationError, extend.TjError)
