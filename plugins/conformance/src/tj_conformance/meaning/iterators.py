"""Programs with generators and caching functions: the order and number of executions."""

from __future__ import annotations

from collections.abc import Iterator

from tj_conformance.meaning.scripts import Script

__all__ = ["programs"]

_SETUP = """
import contextlib, functools, itertools
x = torch.arange(3.)
log = []
class H:
    pass
h = H()
h.k = 0
"""

_GENERATORS = {
    "plain": "log.append('start'); yield x + 1; log.append('mid'); yield x + h.k; return 5",
    "cleaning up": """
        try:
            log.append('start'); yield x + 1; yield x + 2
        finally:
            log.append('closed')
        """,
    "delegating": "log.append('start'); r = yield from [x, x + 1]; log.append(r); yield x",
    "of numbers": "for i in range(3): log.append(i); yield i",
}

_USES = {
    "returned": ("return g()", "it = f(x)\nlog.append('b')\n(type(it).__name__, list(it))"),
    "returned with another": ("y = x + 1; return y, g()", "list(f(x)[1])"),
    "asked once": ("it = g(); return next(it), it", "list(f(x)[1])"),
    "asked by hand": ("return g()", "it = f(x)\nnext(it)"),
    "dropped": ("it = g(); y = next(it); del it; log.append('after'); return y", "f(x)"),
    "closed": ("it = g(); y = next(it); it.close(); log.append('after'); return y", "f(x)"),
    "stored": ("h.g = g(); return x + 1", "f(x)\nlist(h.g)"),
    "run": ("return list(g())", "f(x)"),
    "run with changes": (
        "out = []\n    for y in g():\n        h.k += 1; out.append(y)\n    return out", "f(x)"
    ),
    "run with a break": (
        "out = []\n    for y in g():\n        print('b'); h.k += 1; out.append(y)\n    return out",
        "f(x)",
    ),
    "left early": ("for y in g():\n        break\n    return x + y", "f(x)"),
    "run to its end": (
        "it = g()\n    try:\n        while True: y = next(it)\n    except StopIteration as e:\n"
        "        return x + y, e.value",
        "f(x)",
    ),
}  # fmt: skip

_ITERATORS = (
    "iter([x, y])", "iter((x, y))", "reversed([x, y])", "map(log.append, [1, 2])", "zip([x], [y])",
    "filter(None, [1, 0])", "enumerate([x, y])", "iter({'a': x})", "{'a': x}.items()", "range(3)",
    "itertools.chain([x], [y])", "itertools.islice([x, y, x], 2)", "itertools.repeat(x, 2)",
    "itertools.product([1, 2], [x])", "itertools.accumulate([1, 2, 3])", "itertools.cycle([1, 2])",
    "itertools.count(2)", "(log.append(i) or x for i in range(2))",
)  # fmt: skip

_REMEMBERED = {
    "constant": ("return n + 1", "x + c(n)"),
    "with a side effect": ("log.append(n); return n + 1", "x + c(n)"),
    "reading a global": ("return n + k", "x + c(n)"),
    "reading state": ("return n + h.k", "x + c(n)"),
    "a list": ("return [n]", "x + len(c(n)), c(n) is c(n)"),
    "of a tensor": ("log.append(1); return n + 1", "c(x)"),
    "making a tensor": ("return torch.ones(3) * n", "x + c(n), c(n) is c(n)"),
}


def programs() -> Iterator[tuple[str, Script]]:
    """All programs of the family, by name."""
    for kind, body in _GENERATORS.items():
        for use, (text, call) in _USES.items():
            made = f"def f(x):\n    def g():\n        {body}\n    log.append('f')\n    {text}"
            yield f"generator {kind}, {use}", Script(_SETUP + made, (call,) * 3, "log, h.k")
    for expression in _ITERATORS:
        made = f"def f(x):\n    y = x + 1\n    return y, {expression}"
        call = "it = f(x)[1]\n(type(it).__name__, list(zip(range(3), it)))"
        yield f"iterator {expression}", Script(_SETUP + made, (call,) * 3, "log")
    for kind, (body, result) in _REMEMBERED.items():
        for cache in ("functools.lru_cache", "functools.lru_cache(maxsize=1)", "functools.cache"):
            made = f"k = 1\n@{cache}\ndef c(n):\n    {body}\ndef f(x, n):\n    return {result}"
            calls = ("f(x, 1)", "f(x, 1)", "k = 5; h.k = 7\nf(x, 1)", "c.cache_clear()\nf(x, 2)")
            yield f"{cache} {kind}", Script(_SETUP + made, calls, "log")
