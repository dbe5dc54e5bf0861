"""Functions that cache results (`functools.lru_cache`): what is in the cache, and its identity."""

from __future__ import annotations

import pytest
import tj_core as tj
from tj_torch.capture.eager_probe import equal_to_eager, scope_of

pytestmark = [pytest.mark.sampled(6), pytest.mark.usefixtures("lenient", "forgotten")]

START = """
import functools, enum, dataclasses
x = torch.arange(6.0).reshape(2, 3)
log = []
SIZE = 2
class Recipe:
    def __init__(self, a, b): self.a, self.b, self.n = a, list(b), {}
@functools.lru_cache(4)
def recipe(pattern, names, n): return Recipe(pattern.split(), names)
@functools.lru_cache
def shapes(r, shape, dims):
    return [s * d for s, d in zip(shape, dims)], {0: shape[0]}, len(r.a), r.b
@functools.cache
def twice(n): return n * 2
@functools.cache
def of_global(n): return n * SIZE
def cells():
    k = 3
    @functools.cache
    def of_cell(n): return n * k
    def setting(value):
        nonlocal k
        k = value
    return of_cell, setting
of_cell, setting = cells()
@functools.cache
def parts(n): return [n, n + 1]
@functools.cache
def nested(n): return recipe('a b', (), n), twice(n)
@functools.lru_cache(maxsize=1)
def one(n): return Recipe('x', [n])
@functools.cache
def failing(n):
    if n > 2: raise ValueError('big')
    return [n]
@functools.cache
def logged(n): log.append(n); return [n]
@functools.cache
def tensor(n): return torch.arange(n)
@functools.cache
def noise(n): return torch.randn(n)
@dataclasses.dataclass(frozen=True)
class D:
    n: int
    m: tuple = ()
@functools.cache
def data(n): return D(n, (n, n))
class E(enum.Enum):
    A = 1
@functools.cache
def by(e): return {e: e.name}
"""

PROGRAMS: dict[str, tuple[str, list[str]]] = {
    "object": ("r = recipe('a b c', ('h',), 2)\n    return x * len(r.a) + len(r.b)", ["f(x)"] * 3),
    "object and sizes": (
        "r = recipe('a b', ('h',), 2)\n"
        "    s, d, n, b = shapes(r, x.shape, (2, 2))\n"
        "    return x.sum() + s[0] * 10 + s[1] + d[0] + n + len(b)",
        [
            "f(x)",
            "f(x[:1])",
            "f(torch.ones(3,3))",
            "f(torch.ones(4,5))",
            "f(torch.ones(7,5))",
            "f(torch.ones(0,1))",
        ],
    ),
    "returned": (
        "r = recipe('a', (), 1)\n    return x + 1, r, r is recipe('a', (), 1)",
        ["f(x)[2]", "f(x)[1] is recipe('a', (), 1)", "f(x)[1] is f(x)[1]"],
    ),
    "changed": ("r = recipe('a', (), 1)\n    r.b.append(1)\n    return x * len(r.b)", ["f(x)"] * 4),
    "attribute set": (
        "r = recipe('a', (), 1)\n    r.k = getattr(r, 'k', 0) + 1\n    return x * r.k",
        ["f(x)"] * 4,
    ),
    "changed outside": (
        "r = recipe('a', (), 1)\n    return x * len(r.b)",
        ["f(x)", "recipe('a', (), 1).b.append(3)", "f(x)", "recipe.cache_clear()", "f(x)"],
    ),
    "types": (
        "return x + twice(1), type(twice(1.0)).__name__, type(twice(True)).__name__",
        ["f(x)"] * 2,
    ),
    "types, another first": ("return x, type(twice(1)).__name__", ["twice(1.0)", "f(x)", "f(x)"]),
    "a global": (
        "return x * of_global(3)",
        [
            "f(x)",
            "globals().__setitem__('SIZE', 5)",
            "f(x)",
            "of_global.cache_clear()",
            "f(x)",
            "f(x)",
        ],
    ),
    "a global, and sizes": (
        "return x * of_global(x.shape[0])",
        [
            "f(torch.ones(3))",
            "f(torch.ones(5))",
            "f(torch.ones(6))",
            "globals().__setitem__('SIZE', 5)",
            "f(torch.ones(7))",
            "f(torch.ones(3))",
            "f(torch.ones(5))",
        ],
    ),
    "a global that is read before, and sizes": (
        "return x * SIZE * of_global(x.shape[0]) * of_cell(x.shape[0])",
        [
            "f(torch.ones(3))",
            "f(torch.ones(5))",
            "f(torch.ones(6))",
            "globals().__setitem__('SIZE', 5)",
            "setting(7)",
            "f(torch.ones(7))",
            "f(torch.ones(3))",
            "f(torch.ones(5))",
        ],
    ),
    "floats of sizes": (
        "return x, [type(p).__name__ for p in parts(x.shape[0])]",
        ["f(x)", "parts(4.0)", "f(torch.ones(4,3))[1]", "f(torch.ones(5,3))[1]"],
    ),
    "list": ("p = parts(2)\n    p.append(7)\n    return x * len(p)", ["f(x)"] * 4 + ["parts(2)"]),
    "list of a size": (
        "p = parts(x.shape[0])\n    return x * p[1]",
        ["f(x)", "f(torch.ones(3,3))", "f(torch.ones(4,3))", "f(torch.ones(1,3))"],
    ),
    "changed list of a size": (
        "p = parts(x.shape[0])\n    p.append(7)\n    return x * len(p)",
        ["f(x)", "f(torch.ones(3,3))", "f(torch.ones(4,3))", "f(torch.ones(3,3))"],
    ),
    "returned list of a size": (
        "p = parts(x.shape[0])\n    return x + 1, p",
        [
            "f(x)[1]",
            "f(torch.ones(3,3))[1]",
            "f(torch.ones(4,3))[1] is parts(4)",
            "f(torch.ones(5,3))[1] is parts(5)",
        ],
    ),
    "identity of a list of a size": (
        "p = parts(x.shape[0])\n    return x * (p is parts(x.shape[0])) + (p is not None)",
        ["f(x)", "f(torch.ones(3,3))", "f(torch.ones(4,3))"],
    ),
    "identity by a function": (
        "import operator\n    return x * operator.is_(parts(x.shape[0]), parts(x.shape[1]))",
        ["f(x)", "f(torch.ones(3,3))", "f(torch.ones(4,4))", "f(torch.ones(5,4))"],
    ),
    "nested": (
        "r, n = nested(3)\n    return x * n + len(r.a)",
        ["f(x)"] * 2 + ["nested(3)[0] is recipe('a b', (), 3)"],
    ),
    "one place": ("return x * one(1).b[0] + one(2).b[0]", ["f(x)"] * 3),
    "one place, identity": (
        "a = one(1)\n    b = one(2)\n    return x * (one(1) is a)",
        ["f(x)"] * 3,
    ),
    "raises": (
        "return x * failing(x.shape[0])[0]",
        ["f(x)", "f(torch.ones(3,3))", "f(x)", "f(torch.ones(1,3))"],
    ),
    "handled": (
        "try:\n"
        "        return x * failing(3)[0]\n"
        "    except ValueError as e:\n"
        "        return x + len(str(e))",
        ["f(x)"] * 2,
    ),
    "side effects": ("return x * logged(2)[0]", ["f(x)"] * 3 + ["log"]),
    "tensor": ("return x * tensor(3)", ["f(x)"] * 3 + ["tensor(3).add_(1)", "f(x)"]),
    "tensor, written": ("t = tensor(3)\n    t += 1\n    return x * t", ["f(x)"] * 3),
    "noise": ("return x * noise(3)", ["f(x)"] * 3),
    "data": (
        "d = data(x.shape[1])\n    return x * d.n + len(d.m)",
        ["f(x)", "f(torch.ones(2,4))", "f(torch.ones(2,5))"],
    ),
    "enum": ("return x * len(by(E.A)[E.A])", ["f(x)"] * 2),
    "replaced": (
        "return x * twice(2)",
        ["f(x)", "globals().__setitem__('twice', lambda n: n * 5)", "f(x)"],
    ),
    "info": ("return x * twice(2)", ["f(x)", "f(x)", "twice.cache_info().misses"]),
    "floats": ("return x * twice(0.5)", ["f(x)"] * 2),
    "keywords": ("return x + len(recipe(n=2, pattern='a b', names=('c',)).a)", ["f(x)"] * 2),
    "in a loop": (
        "for i in range(3):\n        x = x * len(recipe('a b', ('h',), i).a)\n    return x",
        ["f(x)"] * 2,
    ),
    "symbol argument": (
        "return x * twice(n)",
        ["f(x,1)", "f(x,2)", "f(x,0)", "f(x,5)", "f(x,1.0)", "f(x,True)"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str) -> None:
    body, calls = PROGRAMS[name]
    equal_to_eager(f"{START}\ndef f(x, n=1):\n    {body}\n", *calls)()


@pytest.mark.parametrize("name", ["object", "object and sizes", "types", "a global", "in a loop"])
def test_no_graph_break(name: str) -> None:
    body, calls = PROGRAMS[name]
    with scope_of(f"{START}\ndef f(x, n=1):\n    {body}\n") as scope:
        jitted = scope["f"] = tj.jit(scope["f"], plugins=["torch"])
        for call in calls:
            eval(call, scope)
    assert tj.stats(jitted).fallbacks == ()


def test_calls_with_the_same_arguments_have_one_guard() -> None:
    body = "for i in range(3):\n        x = x * len(recipe('a b', ('h',), 1).a)\n    return x"
    with scope_of(f"{START}\ndef f(x, n=1):\n    {body}\n") as scope:
        jitted = tj.jit(scope["f"], plugins=["torch"])
        jitted(scope["x"])
    guards = [g for g in map(str, tj.guards(jitted)) if "___remembered" in g]
    assert len([g for g in guards if "Recipe" in g]) == 1
