"""Programs that make Python's numbers and text of sizes and of numbers that become symbols."""

from __future__ import annotations

from collections.abc import Iterator

from tj_conformance.meaning.scripts import Script

__all__ = ["programs"]

_OF_ALL = (
    "round(n)", "round(n, -1)", "round(n, 1)", "divmod(n, 4)", "divmod(n, -4)", "n // 4",
    "n // -4", "n % 4", "n % -4", "-n % 4", "int(n / 4)", "int(-n / 4)", "float(n)", "n / 4",
    "n ** 2", "2.0 ** n", "abs(n)", "min(n, 5)", "max(n, 5)", "sum([n, n])", "bool(n)", "not n",
    "n and 5", "n or 5", "n in (4, 5)", "n * 0", "n + 0", "type(n).__name__", "hash(n)",
    "math.floor(n / 4)", "math.ceil(n / 4)", "math.trunc(n / 4)", "math.sqrt(abs(n))",
    "math.copysign(1, n)", "math.fmod(n, 4)", "math.atan2(n, -1)", "math.isclose(n, 4)",
    "math.exp(n / 10)", "f'{n:.3f}'", "f'{n:>5}'", "f'{n:+}'", "f'{n}'", "f'{n!r}'", "str(n)",
    "'%s' % n", "'{:>8}'.format(n)", "format(n, '>6')", "{n: 1}[n]", "type(n).__add__(n, 1)",
    "n.__mul__('a')",
)  # fmt: skip
_OF_INTS = (
    "f'{n:05d}'", "'%d' % n", "hex(n)", "math.isqrt(abs(n))", "math.gcd(n, 4)", "n << 1", "n >> 1",
    "n & 3", "n | 3", "n ^ 3", "~n", "n.bit_length()", "[0] * n", "pow(n, 2, 5)", "range(n)[-1:]",
    "int.__rsub__(n, 1)", "int.__lt__(n, 4)", "n.__add__(0.5)",
)  # fmt: skip
_OF_FLOATS = ("n.hex()", "n.is_integer()", "math.isnan(n)", "n == n", "n < 0", "-n", "x / n")

_SIZES = (4, 5, 7, 12)
_INTS = (3, 4, 0, 1, -7)
_FLOATS = ("2.5", "3.25", "0.0", "-0.0", "0.0", "-7.125", "1.0", "math.nan")

_SETUP = """
import math
x = torch.arange(24.)
class H:
    pass
h = H()
n = 0
"""

_HOLDERS = {
    "argument": ("def f(x, n):\n    return x * n, {e}", "f(x, {v})"),
    "attribute": ("def f(x, h):\n    n = h.n\n    return x * n, {e}", "h.n = {v}\nf(x, h)"),
    "global": ("def f(x):\n    return x * n, {e}", "n = {v}\nf(x)"),
    "item": ("def f(x, l):\n    n = l[0]\n    return x * n, {e}", "f(x, [{v}])"),
}


def _of_sizes(expression: str) -> tuple[str, Script]:
    text = f"def f(x):\n    n = x.shape[0]\n    return x + 1, {expression}"
    calls = tuple(f"f(x[:{n}])" for n in _SIZES)
    return f"size: {expression}", Script(_SETUP + text, calls)


def programs() -> Iterator[tuple[str, Script]]:
    """All programs of the family, by name."""
    for expression in (*_OF_ALL, *_OF_INTS):
        yield _of_sizes(expression)
    kinds = {"int": (_OF_INTS, _INTS), "float": (_OF_FLOATS, _FLOATS)}
    for kind, (own, values) in kinds.items():
        for expression in (*_OF_ALL, *own):
            for holder, (text, call) in _HOLDERS.items():
                calls = tuple(call.format(v=v) for v in values)
                script = Script(_SETUP + text.format(e=expression), calls)
                yield f"{kind} as {holder}: {expression}", script
