"""Programs that compare objects by identity, and take one object as several arguments."""

from __future__ import annotations

from collections.abc import Iterator

from tj_conformance.meaning.scripts import Script

__all__ = ["programs"]

_KINDS = {
    "object": ("object()", "object()"),
    "own class": ("H()", "H()"),
    "list": ("[1]", "[1]"),
    "dict": ("{1: 1}", "{1: 1}"),
    "set": ("{1}", "{1}"),
    "tuple": ("(1, 2)", "(1, int('2'))"),
    "str": ("'word'", "''.join(['wo', 'rd'])"),
    "float": ("2.5", "float('2.5')"),
    "function": ("(lambda: 1)", "(lambda: 1)"),
    "class": ("type('A', (), {})", "type('A', (), {})"),
    "module": ("torch.nn.ReLU()", "torch.nn.ReLU()"),
    "tensor": ("torch.ones(3)", "torch.ones(3)"),
    "enum": ("E.A", "E.B"),
}
"""Two expressions for each kind of object, of equal objects where possible."""

_SETUP = """
import enum
E = enum.Enum("E", "A B")
class H:
    pass
x = torch.arange(3.)
a, b = {0}, {1}
now = a
h = H()
h.a, h.b, h.now, h.k = a, b, a, 0
l = [a, b, a]
"""

_TOGGLES = {
    "attribute": ("h, x", "h.now", "h.a", "h.now = h.b", "h.now = h.a", "h, x"),
    "global": ("x", "now", "a", "now = b", "now = a", "x"),
    "item": ("l, x", "l[2]", "l[0]", "l[2] = l[1]", "l[2] = l[0]", "l, x"),
    "mixed": ("h, x", "h.now", "a", "h.now = b", "h.now = h.a", "h, x"),
}
_TESTS = ("{} is {}", "not ({} is not {})", "{} in [{}]", "{} == {}")


def _toggles(kind: str, made: tuple[str, str]) -> Iterator[tuple[str, Script]]:
    for holder, (params, now, a, first, second, args) in _TOGGLES.items():
        for test in _TESTS[:2] if kind in ("tensor", "set") else _TESTS:
            text = f"""
def f({params}):
    {"global now" if holder == "global" else "pass"}
    if {test.format(now, a)}:
        {first}
        return x + 1
    {second}
    return x - 1
"""
            calls = (f"f({args})",) * 4
            watched = "h.now is h.a, now is a, l[2] is a, h.k"
            name = f"{holder} of {kind}, {test.format('now', 'a')}"
            yield name, Script(_SETUP.format(*made) + text, calls, watched)


_GIVEN = {
    "compared": ("return x + 1 if p is q else x - 1", "object()"),
    "equal": ("return x + 1 if p == q else x - 1", "H()"),
    "set": ("p.n = 1; q.n = 2; return x + p.n", "H()"),
    "appended": ("p.append(1); return x + len(q)", "[]"),
    "added": ("p.add(len(q)); return x + len(q)", "set()"),
    "filled": ("p[len(q)] = 1; return x + len(q)", "{}"),
    "found": ("return x + [q, p].index(p)", "H()"),
}
_PAIRS = (("p", "q"), ("q", "q"), ("p", "q"), ("p", "p"))


def _arguments() -> Iterator[tuple[str, Script]]:
    for name, (body, made) in _GIVEN.items():
        for start in (0, 1):
            text = _SETUP.format(made, made) + f"p, q = {made}, {made}\ndef f(p, q, x):\n    {body}"
            calls = tuple(f"f({p}, {q}, x)" for p, q in (_PAIRS[start:] + _PAIRS[:start]))
            first = "two" if start == 0 else "one"
            yield f"arguments {name}, {first} at first", Script(text, calls, "p, q")


_MEMORY = {
    "view": "x.view(-1).data_ptr()",
    "copy": "(x + 0).data_ptr()",
    "same": "x.data_ptr()",
    "storage": "x.untyped_storage().data_ptr()",
}


def _memory() -> Iterator[tuple[str, Script]]:
    for name, place in _MEMORY.items():
        for brk in ("", "print('between')", "torch._dynamo.graph_break()"):
            text = f"""
x = torch.arange(3.)
def f(x):
    p = x.data_ptr()
    {brk or "pass"}
    return x + 1, p == {place}
"""
            yield (
                f"memory of {name} after {brk or 'nothing'}",
                Script(text, ("f(x)", "f(x.clone())", "f(x[1:])")),
            )


def programs() -> Iterator[tuple[str, Script]]:
    """All programs of the family, by name."""
    for kind, made in _KINDS.items():
        yield from _toggles(kind, made)
    yield from _arguments()
    yield from _memory()
