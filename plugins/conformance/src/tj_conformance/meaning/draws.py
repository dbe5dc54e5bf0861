"""Programs that draw from generators of Python's and NumPy's own, wherever they hold them."""

from __future__ import annotations

from collections.abc import Iterator

from tj_conformance.meaning.scripts import Script

__all__ = ["programs"]

_DRAWS = {
    "random.Random(1)": (
        "random()", "randint(1, 9)", "uniform(0, 2)", "randrange(5)", "choice([1, 2, 3])",
        "shuffle(l)", "gauss(0, 1)", "sample([1, 2, 3], 2)", "getrandbits(8)", "seed(3)",
        "getstate()[2]", "betavariate(1, 2)",
    ),
    "np.random.default_rng(1)": (
        "random()", "integers(5)", "normal()", "choice([1, 2, 3])", "shuffle(l)", "permutation(3)",
        "standard_normal(3)",
    ),
    "np.random.RandomState(1)": (
        "rand()", "randint(5)", "normal()", "randn(3)", "choice([1, 2, 3])", "shuffle(l)",
        "permutation(3)", "seed(3)",
    ),
}  # fmt: skip

_HOLDERS = {
    "argument": ("r = {made}\ndef f(r, x):\n    {body}", "f(r, x)"),
    "attribute": ("h = H()\nh.r = r = {made}\ndef f(h, x):\n    r = h.r\n    {body}", "f(h, x)"),
    "global": ("r = {made}\ndef f(x):\n    {body}", "f(x)"),
    "closure": (
        "r = {made}\ndef make(r):\n    def f(x):\n        {body}\n    return f\nf = make(r)",
        "f(x)",
    ),
    "made there": ("r = None\ndef f(x):\n    r = {made}\n    {body}", "f(x)"),
}

_SETUP = """
import random
import numpy as np
x = torch.arange(3.)
l = [1, 2, 3]
class H:
    pass
"""


def programs() -> Iterator[tuple[str, Script]]:
    """All programs of the family, by name."""
    for made, draws in _DRAWS.items():
        for draw in draws:
            for holder, (text, call) in _HOLDERS.items():
                body = f"v = r.{draw}; return x + 1, str(v)"
                full = _SETUP + text.format(made=made, body=body)
                yield f"{made} as {holder}: {draw}", Script(full, (call,) * 3, "r, l")
    for module, made in (("random", "random.Random(1)"), ("np.random", "np.random.RandomState(1)")):
        for draw in _DRAWS[made]:
            if draw != "getstate()[2]":
                body = f"def f(x):\n    v = {module}.{draw}; return x + 1, str(v)"
                yield f"{module}.{draw}", Script(_SETUP + body, ("f(x)",) * 3, "l")
