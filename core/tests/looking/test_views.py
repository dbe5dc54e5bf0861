"""Functions that look at compiled programs, and how their results show themselves."""

from __future__ import annotations

import pytest
import tj_core as tj
from tj_core.compile.compilation import Track
from tj_core.contract.decline import Decline
from tj_core.errors import TjError
from tj_core.host import session as sessions
from tj_core.host.frontends import Frontend
from tj_core.host.jitted import Entry, Fallback, Fragment, Guard, Stats
from tj_core.host.session import Session
from tj_core.source import Source
from tj_core.testing.numeric import NullPlugin, NumericPlugin, num


def refuse(call):
    return Decline("<b>no</b>")


@pytest.fixture
def session():
    refusing = NullPlugin("num.mul", name="refusing", check=refuse)
    null = NullPlugin("num.mul", answer=num.mul)
    return Session(plugins=[refusing, null, NumericPlugin()])


@pytest.fixture
def jitted(session):
    @tj.jit(session=session)
    def program(x, y):
        return x * y + y

    program([1.0, 2.0], [3.0, 4.0])
    program([1.0], [3.0])
    return program


def test_programs_are_entries_in_the_order_of_compilation(jitted):
    found = tj.programs(jitted)
    assert [(p.name, p.kind) for p in found] == [("0", "entry"), ("1", "entry")]
    assert found["1"] is found[1]
    assert tj.last_trace(found[0]).inputs[0].shape == (2,)
    assert tj.last_trace(found[1]) == tj.last_trace(jitted)
    with pytest.raises(TjError, match=r"there is no program '7'; there are: 0, 1"):
        found["7"]


def test_all_functions_take_a_program(jitted):
    first, last = tj.programs(jitted)
    assert tj.guards(first) == (Guard("len(x) == 2"), Guard("len(y) == 2"))
    assert tj.explain(first).counts() == {"null": 1, "python": 1}
    assert tj.stats(first) is tj.stats(jitted)
    assert tj.last_traces(first) == first.traces
    assert tj.last_trace(last, stage="ACQUIRED") == last.traces[0]
    assert tj.programs(first) == (first,)
    assert "num_mul" in first.code


def test_a_program_beside_another_is_one(jitted):
    entry = jitted.__tj__.last
    c = entry.compilation
    c.others["backward"] = c.traces[0]
    c.others["backward_0"] = Track(c.traces, c.claims, c.program, c.regions)
    *_, split, backward = tj.programs(jitted)
    assert (split.kind, split.code, split.claims, split.regions) == ("backward", "", (), ())
    assert tj.explain(split).claims == ()
    assert (backward.name, backward.part) == ("1 backward_0", "backward_0")
    assert tj.explain(backward).counts() == {"null": 1, "python": 1}
    assert tj.last_trace(backward) == c.traces[-1]


def test_a_fragment_says_what_it_runs_after(jitted):
    stop = Fallback("graph break: print; for good", Source("/a/prog.py", 3, "print(x)", "f"))
    compilation = jitted.__tj__.last.compilation
    jitted.__tj__.add(Entry(compilation, fragment=Fragment("f", None, stop)))
    jitted.__tj__.add(Entry(compilation, fragment=Fragment("f", stop)))
    jitted.__tj__.add(Entry(compilation, fragment=Fragment("g")))
    *_, first, rest, whole = tj.programs(jitted)
    assert [p.kind for p in (first, rest, whole)] == ["fragment", "fragment", "entry"]
    assert (first.after, first.ended, rest.after) == (None, stop, stop)
    assert rest.row()[-1] == "prog.py:3: print(x): graph break: print"
    assert whole.function == "g"


def test_variants_are_programs(jitted):
    compilation = jitted.__tj__.entries[0].compilation
    compilation.variants.append(jitted.__tj__.last.compilation)
    found = tj.programs(jitted)
    assert [(p.name, p.kind) for p in found[:2]] == [("0", "entry"), ("0 variant 0", "variant")]


def test_several_states_behind_one_callable(session, jitted, monkeypatch):
    other = tj.jit(lambda v: v + v, session=session)
    other([1.0])
    holder = object()
    states = [jitted.__tj__, other.__tj__]
    knows = Frontend(
        "knows", lambda fn: False, print, 0, lambda fn: states if fn is holder else None
    )
    session.frontends = (*session.frontends, knows)
    monkeypatch.setattr(sessions, "_current", session)
    assert len(tj.programs(holder)) == 3
    assert tj.last_trace(holder) == tj.last_trace(other)
    assert (tj.stats(holder).entries, tj.stats(holder).misses) == (3, 3)
    assert tj.guards(holder) == tj.guards(other)
    states.clear()
    assert tj.programs(holder) == ()
    assert tj.stats(holder) == Stats()
    assert tj.guards(holder) == ()
    with pytest.raises(TjError, match="object has no trace"):
        tj.last_trace(holder)


def test_what_shows_itself_is_short_and_html_is_escaped(jitted):
    looked = {
        "<2 tj programs>": tj.programs(jitted),
        "<tj program '0' of ": tj.programs(jitted)[0],
        "<tj explanation: null 1, python 1>": tj.explain(jitted),
        "<tj trace 'computation' at stage CLAIMED: 2 calls>": tj.last_trace(jitted),
        "<tj stats: 2 calls, 0 hits, 2 misses, 2 entries": tj.stats(jitted),
        "<2 tj guards>": tj.guards(jitted),
        "<tj diff of ACQUIRED to CLAIMED: ": tj.diff(jitted, "ACQUIRED", "CLAIMED"),
    }
    for start, shown in looked.items():
        assert repr(shown).startswith(start)
        assert len(repr(shown)) < 200
        assert "<b>" not in shown._repr_html_()
        assert str(shown)
    assert "&lt;b&gt;no&lt;/b&gt;" in tj.explain(jitted)._repr_html_()


def test_stats_and_guards_print_a_line_each(jitted):
    lines = str(tj.stats(jitted)).splitlines()
    assert lines[0].split() == ["calls", "2"]
    assert any(line.split()[0] == "claim" for line in lines)
    assert str(tj.guards(jitted)) == "len(x) == 1\nlen(y) == 1"


def test_text_in_a_notebook_has_a_fixed_font_and_a_diff_has_colours(jitted):
    assert tj.last_trace(jitted)._repr_html_().startswith('<pre style="font-family:monospace">')
    found = tj.diff(jitted, "ACQUIRED", "CLAIMED")
    lines = found._repr_html_().splitlines()
    assert len(lines) == len(found.lines)
    for shown, line in zip(lines[2:], found.lines[2:], strict=True):
        assert ("54a24b" in shown, "e45756" in shown) == (line[:1] == "+", line[:1] == "-")


def test_a_diff_of_two_stages(jitted):
    found = tj.diff(jitted, "ACQUIRED", "CLAIMED")
    assert found.lines[:2] == ("--- ACQUIRED", "+++ CLAIMED")
    assert any("null.num.mul" in line for line in found.added)
    assert any("= num.mul(" in line for line in found.removed)
    assert tj.diff(jitted, "CLAIMED", "CLAIMED").lines == ()
    with pytest.raises(TjError, match="no trace at stage JOINT"):
        tj.diff(jitted, "JOINT", "CLAIMED")
