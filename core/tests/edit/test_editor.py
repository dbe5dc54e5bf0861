"""The trace editor, beyond its use by passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tj_core.edit.editor import TraceEditor, recorded, timed
from tj_core.errors import VerificationError
from tj_core.ir.tags import TagRegistry, TagSet
from tj_core.ir.trace import BoundSymbol, PassRecord, Trace
from tj_core.testing.numeric import call, vector
from tj_core.text.language import EMPTY_LANGUAGE
from tj_core.verify.verifier import verify

if TYPE_CHECKING:
    from tj_core.ir.proxy import Proxy

X, Y, Z = (vector(name, 4) for name in "xyz")
FIRST = call("mul", X, X, outputs=Y)
SECOND = call("add", Y, X, outputs=Z)


def program(*calls: BoundSymbol, outputs: Any = (Z,)) -> Trace:
    return Trace((X,), calls, outputs, language=EMPTY_LANGUAGE)


def names(trace: Trace) -> list[str]:
    return [str(c.symbol.name) + ":" + c.label for c in trace.calls]


def test_a_trace_that_nothing_was_done_to_is_the_same_object() -> None:
    trace = program(FIRST, SECOND)
    editor = TraceEditor(trace, TagRegistry())
    editor.append(*trace.calls)
    assert editor.done(PassRecord("nothing")) is trace


def test_calls_are_put_before_and_in_the_place_of_others() -> None:
    editor = TraceEditor(program(FIRST, SECOND))
    editor.append(FIRST, SECOND)
    editor.insert(1, editor.renamed(FIRST))
    editor.replace(2, call("sub", Y, X, outputs=Z))
    assert names(editor.done()) == ["mul:y", "mul:y_1", "sub:z"]
    editor.replace(1)
    assert names(editor.done()) == ["mul:y", "sub:z"]


def test_a_call_runs_again_under_free_names_over_what_its_arguments_are_now() -> None:
    editor = TraceEditor(program(FIRST, SECOND))
    again = editor.renamed(SECOND)
    editor.values["y"] = X
    again = editor.moved(again)
    assert (again.args, again.outputs) == ((X, X), Z.replace(name="z_1"))


def test_tags_are_inherited_where_nothing_else_changes() -> None:
    trace = program(FIRST, SECOND)
    editor = TraceEditor(trace, TagRegistry())
    editor.append(*trace.calls)
    editor.inherit(Y, TagSet(["SAVE"]))
    made = editor.done()
    found: list[Proxy] = [*made.calls[0].flat_outs, *made.calls[1].flat_args]
    assert [p.name for p in found if "SAVE" in p.tags] == ["y", "y"]


def test_the_history_says_who_made_a_trace_and_how_long_it_took() -> None:
    made = timed(recorded(recorded(program(), PassRecord("a")), PassRecord("b")), 0.5)
    assert [(r.name, r.seconds) for r in made.history] == [("a", 0.0), ("b", 0.5)]


def test_calls_become_a_region_over_the_values_that_they_need() -> None:
    trace = program(FIRST, SECOND)
    editor = TraceEditor(trace, TagRegistry())
    region = editor.part("part", (X,), trace.calls, (Z,))
    made = call("f", region, X, outputs=(Z,))
    editor.append(made)
    after = editor.done()
    assert after.calls[0].subprograms == (region,)
    assert (region.program.inputs, region.program.calls) == ((X,), trace.calls)
    assert (region.operands, region.returns) == ((0,), True)
    verify(after, tags=TagRegistry())
    wrong = editor.part("part", (), trace.calls, (Z,))
    with pytest.raises(VerificationError, match="'x'"):
        verify(after.replace(calls=(call("f", wrong, X, outputs=(Z,)),)), tags=TagRegistry())
