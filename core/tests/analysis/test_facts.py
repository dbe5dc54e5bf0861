"""Liveness and storage of a program written by hand."""

from __future__ import annotations

from tj_core.analysis.alias import Storage, alias_facts, makes_views, same_objects, storage_roots
from tj_core.analysis.liveness import free_values, last_uses, live_calls, live_items
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.trace import BoundSymbol, Trace
from tj_core.testing.numeric import call, vector
from tj_core.text.language import EMPTY_LANGUAGE as LANGUAGE

X, W, A, B, C, D, E = (vector(name, 4) for name in "xwabcde")

PRODUCT = call("mul", X, W, outputs=A)
VIEW = call("view", A, outputs=B, effects=Effects(aliases=(Alias(0, "arg", 0),)))
SAME = (Alias(0, "arg", 0, identical=True), Alias(1, "out", 0, identical=True))
TWICE = call("both", B, W, outputs=(C, D), effects=Effects(aliases=SAME))
UNUSED = call("add", X, X, outputs=E)
CALLS = (PRODUCT, VIEW, UNUSED, TWICE)


def test_calls_that_nobody_needs_are_not_live() -> None:
    assert live_calls(CALLS, (D,)) == [0, 1, 3]
    assert live_calls(CALLS, (D,), lambda place, _: place == 2) == [0, 1, 2, 3]


def test_live_items_are_found_backwards_and_what_they_read_is_live() -> None:
    reads = {"c": "ab", "b": "a", "d": "b", "a": ""}

    def read(item: str, live: set[str]) -> str | None:
        return reads[item] if item in live else None

    live = {"c"}
    assert (live_items("abdc", live, read), live) == (["a", "b", "c"], {"a", "b", "c"})


def test_free_values_come_in_the_order_of_their_first_use() -> None:
    assert free_values(CALLS[1:], (X, W)) == [A, X, W]
    assert free_values(CALLS[1:], (E, X), known=["a"]) == [X, W]


def test_last_uses_count_for_the_memory_that_a_value_is_in() -> None:
    assert last_uses(CALLS[:2], (B,)) == [["x", "w"], ["a"]]
    roots = storage_roots(CALLS)
    assert last_uses(CALLS[:2], (B,), lambda name: roots.get(name, name)) == [["x", "w"], []]


def test_memory_is_known_by_the_first_value_in_it() -> None:
    assert storage_roots(CALLS) == {"a": "a", "b": "a", "c": "a", "d": "a", "e": "e"}
    assert storage_roots([VIEW]) == {"b": "a"}


def test_objects_are_reached_by_paths_of_views() -> None:
    again = call("view", B, outputs=E, effects=Effects(aliases=(Alias(0, "arg", 0),)))
    storage = Storage.of(Trace((X, W), (PRODUCT, VIEW, again), E, language=LANGUAGE))
    place = storage.places["e"]
    assert (place.root, [step.call for step in place.path]) == ("a", [VIEW, again])
    assert storage.places["x"].path == storage.places["a"].path == ()


def test_what_may_be_one_value_or_another_is_in_the_memory_of_both() -> None:
    either = (Alias(0, "arg", 0), Alias(0, "arg", 1))
    choice = call("choose", A, E, outputs=C, effects=Effects(aliases=either))
    write = call("fill_", C, 1.0, outputs=None, effects=Effects(mutates=(0,)))
    trace = Trace((X, W), (PRODUCT, UNUSED, choice, write), A, language=LANGUAGE)
    storage = Storage.of(trace)
    assert storage.roots_of(C) == ("a", "e")
    assert "c" not in storage.places
    facts = alias_facts(trace)
    assert [facts.is_mutated(p) for p in (A, E, C, X)] == [True, True, True, False]
    assert facts.escaping == {"a"} == {facts.roots[name] for name in "aec"}


def test_nobody_knows_what_an_opaque_call_returns() -> None:
    opaque = call("call", A, outputs=C, effects=Effects(ordered=("side_effect",)))
    storage = Storage.of(Trace((X, W), (PRODUCT, opaque), C, language=LANGUAGE))
    assert storage.roots_of(C) == ("c", "a")
    inside = call("part", X, outputs=D, effects=Effects(aliases=(Alias(0, "internal"),)))
    assert Storage.of(Trace((X,), (inside,), D, language=LANGUAGE)).internal == {"d"}


def test_an_output_may_be_an_argument_or_another_output() -> None:
    assert same_objects(TWICE) == {"c": B, "d": B}
    assert same_objects(VIEW) == {}


def test_calls_that_make_nothing_but_views() -> None:
    assert [makes_views(c) for c in CALLS] == [False, True, False, False]
    nothing: BoundSymbol = call("check", X, outputs=None)
    assert not makes_views(nothing)
