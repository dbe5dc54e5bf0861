"""The page, parsed: it is whole, needs no network, and has what `tj_core` tells of programs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tj_core as tj
from tj_core.compile.compilation import Track
from tj_core.host import session as sessions
from tj_core.host.jitted import Entry, Fallback, Fragment
from tj_core.source import Source
from tj_core.testing.fusing import LoopPlugin
from tj_core.testing.numeric import NumericPlugin
from tj_report import plugin
from tj_report.data import program_data


def test_the_page_refers_to_nothing_outside(jitted, parsed):
    page = parsed(jitted, "a program")
    outside = [
        (tag, name)
        for tag, attributes in page.attributes
        for name in attributes
        if name in ("src", "href", "action", "data", "srcset") or tag in ("link", "iframe")
    ]
    assert outside == []
    policy = next(a["content"] for _, a in page.attributes if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert "http" not in page.scripts["code"]


def test_texts_are_escaped(jitted, parsed):
    hostile = "</script><script>alert(1)</script><!-- <b>"
    jitted.__tj__.last.reason = hostile
    entry = jitted.__tj__.last
    trace = entry.compilation.traces[-1]
    source = Source("/a/b.py", 1, hostile)
    call = trace.calls[0].replace(source=source)
    entry.compilation.others["backward"] = trace.replace(calls=(call, *trace.calls[1:]))
    page = parsed(jitted, hostile)
    assert len([tag for tag, _ in page.attributes if tag == "script"]) == 1 + 3 + 1
    assert hostile in page.text
    assert f"b.py:1: {hostile}" in page.data(2)["sources"]


def test_stages_have_lines_sources_and_executors(jitted):
    first, _ = tj.programs(jitted)
    data = program_data(first)
    acquired, claimed = data["stages"][0], data["stages"][-1]
    for stage, trace in ((acquired, first.traces[0]), (claimed, first.traces[-1])):
        text = "\n".join(data["lines"][i] for i in stage["lines"]) + "\n"
        assert text == trace.python(sources=False, bodies=False)
        assert len(stage["lines"]) == len(stage["sources"]) == len(stage["executors"])
        assert stage["calls"] == 2
        owners = dict.fromkeys(data["executors"][i] for i in stage["executors"])
        assert [name for name in owners if name] == ["null", "python"]
    assert (acquired["stage"], claimed["name"]) == ("ACQUIRED", "CLAIMED (claim)")
    assert len(data["lines"]) == len(set(data["lines"]))


def test_claims_declines_and_code(jitted):
    first, _ = tj.programs(jitted)
    data = program_data(first)
    assert data["claims"] == [list(row) for row in tj.explain(first).rows()]
    assert data["declines"] == [["null", "has no claim for it", "1", data["claims"][1][0]]]
    assert data["code"] == first.code


def test_regions_have_their_code(parsed):
    @tj.jit(plugins=[plugin, LoopPlugin(), NumericPlugin()])
    def fused(x, y):
        return x * y + y

    fused([1.0, 2.0], [3.0, 4.0])
    (region,) = parsed(fused).data(0)["regions"]
    (use,) = tj.explain(fused).regions
    assert region["code"] == use.kernel.fused.source
    assert (region["calls"], region["operations"]) == (1, ["num.mul", "num.add"])
    assert region["state"] == ""


def test_guards_reasons_and_graph_breaks(jitted, parsed):
    state = jitted.__tj__
    stop = Fallback("graph break: print", Source("/a/prog.py", 3, "print(x)", "f"))
    state.note_break(stop)
    compilation = state.last.compilation
    state.add(Entry(compilation, fragment=Fragment("f", stop), reason="k was 2, is 3"))
    page = parsed(jitted)
    assert "len(x) == 2" in page.text
    assert "It was compiled because: k was 2, is 3" in page.text
    assert "after prog.py:3: print(x): graph break: print" in page.text
    assert "/a/prog.py:3 in f: print(x)graph break: print" in page.text


def test_seconds_are_bars(jitted, parsed):
    jitted.__tj__.stats.seconds = {"claim": 0.5, "capture": 2.0, "dce": 0.0}
    page = parsed(jitted)
    bars = [a["style"] for tag, a in page.attributes if tag == "div" and "style" in a]
    assert bars == ["width:100.0%", "width:25.0%"]
    assert "2.50 s compiling" in page.text


def test_a_backward_is_a_program_of_the_page(jitted, parsed):
    c = jitted.__tj__.last.compilation
    c.others["backward"] = Track(c.traces, c.claims, c.program, c.regions)
    page = parsed(jitted)
    numbers = [a["data-number"] for _, a in page.attributes if "data-number" in a]
    assert numbers == ["0", "1", "2"]
    assert page.data(2)["claims"] == page.data(1)["claims"]


def test_the_palette_has_every_executor(jitted, parsed):
    assert set(json.loads(parsed(jitted).scripts["palette"])) == {"null", "python"}


def test_tj_report_writes_the_file(jitted, tmp_path):
    file = tj.report(jitted, tmp_path / "page.html", title="mine")
    assert file == tmp_path / "page.html"
    assert "<title>tj: mine</title>" in file.read_text("utf-8")


def test_a_session_without_pages_uses_the_projects(session, monkeypatch, tmp_path):
    f = tj.jit(lambda x: x + x, plugins=[NumericPlugin()])
    with pytest.raises(tj.TjError, match="there is nothing to report"):
        tj.report(f, tmp_path / "page.html")
    f([1.0])
    monkeypatch.setattr(sessions, "_current", tj.Session(plugins=[NumericPlugin()]))
    with pytest.raises(tj.TjError, match="no plugin in use makes pages") as error:
        tj.report(f, tmp_path / "page.html")
    assert "tj-report" in error.value.hint
    monkeypatch.setattr(sessions, "_current", session)
    assert tj.report(f, tmp_path / "page.html").exists()


def test_a_session_loads_no_template_engine():
    code = (
        "import sys, tj_core as tj; from tj_report import plugin; tj.Session(plugins=[plugin]);"
        "print('jinja2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
