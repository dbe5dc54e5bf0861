"""Sets go in the order that Python has, which depends on how they were made, not on their items."""

from __future__ import annotations

import random
import warnings

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import captured_whole, equal_to_eager

pytestmark = [pytest.mark.sampled(2), pytest.mark.usefixtures("lenient", "forgotten")]

START = """
x = torch.ones(2)
def folded(x, s):
    for item in s: x = x * 2 + item
    return x
"""

MADE = {
    "a literal": "s = {3, *[1]}",
    "a call": "s = set([9, 5, 1])",
    "a comprehension": "s = {k % 9 for k in (16, 8, 3, 17, 7)}",
    "items that are added": "s = set(); s.add(3); s.add(1); s.update([9, 2])",
    "items that are taken away": "s = {8, 16, 0, 3}; s.discard(8); s |= {24}; s -= {3}",
    "a pop": "s = {8, 0, 16}; x = x * s.pop()",
    "unions": "s = {3, *[1]} | {9} | set([17, 25]); s = s.union([0, 8], {33: 1})",
    "differences": "s = set(range(20, 0, -3)) - {5}; s = s.difference([2, 8])",
    "common items": "s = set(range(20, 0, -3)) & {5, 11, 8, 2, 16}",
    "a copy": "s = set([9, 5, 1, 17]).copy() ^ {33}",
    "frozen": "s = frozenset([3, 1, 9]) | frozenset((17,))",
    "texts": "s = {ord(c) for c in {'b', 'a', *'cd'}}",
}

GIVEN = {
    "a loop": "return folded(x, s)",
    "a list": "return x * 2, [*s], list(s), tuple(s), list(enumerate(s)), [k for k in s]",
    "a text": "return x * 2, str(s), f'{s}'",
    "a call": "return (lambda a, b: x * a + b)(*s)",
    "a dict": "return x * 2, {k: 1 for k in s}, dict.fromkeys(s)",
    "a copy": "return x * 2, list(set(s)), list(s.copy())",
    "an item": "return x * s.pop(), len(s)",
    "a change": "s.add(16); return folded(x, s)",
    "a change after": "y = folded(x, s); s.discard(0); return y, len(s)",
    "items of another": "s -= {8}; return x * 2, list(s)",
    "what is made of it": "return folded(x, s | {16}), s - {16}",
    "after a graph break": "t = s | {3}; torch._dynamo.graph_break(); return folded(x, t)",
}


@pytest.mark.parametrize("name", MADE)
def test_a_set_that_a_program_makes(name: str) -> None:
    text = f"{START}def f(x):\n    {MADE[name]}\n    return folded(x, s), list(s), str(s), s"
    equal_to_eager(text, "f(x)", "[*f(x)[3]]")()


NOT_FROZEN = ("an item", "a change", "a change after")
CASES = [(name, kind) for kind in ("set", "frozenset") for name in GIVEN
         if kind == "set" or name not in NOT_FROZEN]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_equal_sets_in_other_orders(name: str, kind: str) -> None:
    text = f"{START}def f(x, s):\n    {GIVEN[name]}"
    calls = (f"f(x, {kind}([8, 0]))", f"f(x, {kind}([0, 8]))", f"f(x, {kind}([8, 0]))")
    equal_to_eager(text, *calls)()


def test_a_set_that_changes_between_calls() -> None:
    text = START + "s = {8, 0}\nclass C: s = {8, 0}\nc = C()\n"
    text += "def f(x): return folded(x, s) + folded(x * 2, c.s) * 3"
    changes = "s.clear()", "s.update([0, 8])", "f(x)", "setattr(c, 's', {0, 8})", "f(x)"
    equal_to_eager(text, "f(x)", *changes)()


def test_items_that_a_program_takes_from_an_argument() -> None:
    text = "x = torch.ones(2)\ns = {8, 0}\ndef f(x, s, t):\n    s -= t\n    return x + len(t)"
    equal_to_eager(text, "f(x, s, {8})", "s", "f(x, s, s)", "s")()


def test_questions_without_an_order() -> None:
    """They neither break the graph nor ask for the order."""
    text = """
x = torch.ones(2)
def f(x, s):
    t = s | {16}
    return x * len(t) + (3 in s) + max(t) + min(s) + (s == {8, 0}) + any(s), sorted(s - {8})
"""
    captured_whole(text, "f(x, {8, 0})")

    def f(x: torch.Tensor, s: set[int]) -> torch.Tensor:
        return x * 2 if 8 in s else x

    jitted = tj.jit(f, plugins=["torch"])
    for s in ({8, 0}, {0, 8}):
        assert torch.equal(jitted(torch.ones(2), s), torch.full((2,), 2.0))
    assert tj.stats(jitted).misses == 1


OPERATIONS = (
    *("{a} | {b}", "{a} & {b}", "{a} - {b}", "{a} ^ {b}", "{a}.copy()", "{a}.union({b}, [{k}])"),
    *("set({a})", "{{{k}, {l}}}", "{{n for n in ({k}, {l}, 3)}}", "set([{l}, {k}, {k} + 8])"),
)
WRITES = ("{a}.add({k})", "{a}.discard({k})", "{a} -= {b}", "{a} |= {b}", "{a}.update([{k}, {l}])",
          "{a} and out.append({a}.pop())", "out.append([*{a}])", "{a} &= {b}")  # fmt: skip


def made_up(draw: random.Random) -> str:
    """A program that makes, changes and walks through sets."""
    names, lines = ["s"], ["def f(x, s):", "    out = []", "    t = {1, *[9]}"]
    names.append("t")
    for n in range(draw.randrange(3, 9)):
        a, b = draw.choice(names), draw.choice(names)
        given = {"a": a, "b": b, "k": draw.randrange(40), "l": 8 * draw.randrange(5)}
        if draw.random() < 0.6:
            lines.append(f"    s{n} = {draw.choice(OPERATIONS).format(**given)}")
            names.append(f"s{n}")
        else:
            lines.append(f"    {draw.choice(WRITES).format(**given)}")
    every = ", ".join(names)
    return "\n".join([*lines, f"    return x + len(out), out, [[*q] for q in ({every})], s | t"])


@pytest.mark.parametrize("seed", range(12))
def test_made_up_programs(seed: int) -> None:
    draw = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for _ in range(4):
            text = f"x = torch.ones(1)\n{made_up(draw)}"
            calls = [f"(lambda s: (f(x, s), [*s]))({given})" for given in ("{8, 0}", "set()")]
            equal_to_eager(text, *calls)()
