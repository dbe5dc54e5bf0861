"""Functions, classes, objects and methods that are sought among keys, items and values."""

from __future__ import annotations

import pytest
from tj_torch.capture.eager_probe import equal_to_eager

pytestmark = [pytest.mark.sampled(8), pytest.mark.usefixtures("lenient", "forgotten")]

TEXT = """
class C: pass
class E: pass
class Method:
    def one(self): pass
    def other(self): pass
x = torch.ones(2)
first, second = FIRST, SECOND
known, kept, items = {first: 1, "k": 2}, {first, "k"}, [first, "k"]
class Holder: pass
h = Holder()
h.known, h.kept = dict(known), set(kept)
m = torch.nn.Linear(2, 2)
def f(x, a, b): return x * 2, RESULT
"""

KINDS = {
    "functions": ("lambda v: v + 1", "lambda v: v + 2"),
    "builtins": ("torch.sin", "torch.cos"),
    "classes": ("C", "E"),
    "objects": ("C()", "C()"),
    "modules": ("torch.nn.Linear(2, 2)", "torch.nn.Linear(2, 2)"),
    "methods": ("Method().one", "Method().one"),
    "numbers": ("7", "8"),
    "texts": ("'a'", "'b'"),
}

RESULTS = (
    "known.get(a)",
    "a in known",
    "a in kept",
    "a in items",
    "h.known.get(b, 5)",
    "b in h.kept",
    "{a: 1}.get(b)",
    "b in {a}",
    "len({a, b})",
    "len({a: 1, b: 2})",
    "{(a, 1): 3}.get((b, 1))",
    "len(kept | {b})",
    "{**known, b: 9}[b], len({**known, b: 9})",
    "frozenset([a]) <= frozenset([b])",
    "[a, b].index(b)",
    "[a, b].count(b)",
    "a == b",
    "hash(a) == hash(b)",
)

CALLS = tuple(
    f"f(x, {a}, {b})"
    for a, b in (
        *(("first", "second"), ("second", "first"), ("first", "first"), ("second", "second")),
        ("first", "second"),
    )
)


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_whom_a_call_gives(kind: str, result: str) -> None:
    first, second = KINDS[kind]
    text = TEXT.replace("FIRST", first).replace("SECOND", second).replace("RESULT", result)
    equal_to_eager(text, *CALLS)()
    equal_to_eager(text, *reversed(CALLS))()


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_are_replaced(kind: str) -> None:
    first, second = KINDS[kind]
    text = TEXT.replace("FIRST", first).replace("SECOND", second).replace("RESULT", "a in known")
    new = "known.pop(first), known.__setitem__(second, 3)"
    old = "known.pop(second), known.__setitem__(first, 3)"
    calls = ("f(x, first, 0)", new, "f(x, first, 0)", "f(x, second, 0)", old, "f(x, first, 0)")
    # Up to 2.13 Dynamo raises an error of its own for objects that are keys from outside.
    equal_to_eager(text, *calls, leaves_frames=kind in ("objects", "modules"))()
