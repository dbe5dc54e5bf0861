"""State outside of a session: each variable of a module that changes says why it is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest

MAKERS = {
    "Condition", "ContextVar", "Event", "Lock", "OrderedDict", "RLock", "WeakKeyDictionary",
    "WeakSet", "WeakValueDictionary", "count", "defaultdict", "deque", "local",
}  # fmt: skip
"""Makers of mutable objects and of locks for these."""

CHANGING = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "set",
    "setdefault", "update",
}  # fmt: skip
"""Names of methods that mutate."""


def _maker(value: ast.expr) -> str:
    function = value.func if isinstance(value, ast.Call) else value
    function = function.value if isinstance(function, ast.Subscript) else function
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _changed(tree: ast.Module) -> set[str]:
    """Names that functions of a module rebind, write to or change by a method."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.value, ast.Name):
            changing = isinstance(node, ast.Attribute) and node.attr in CHANGING
            if changing or not isinstance(node.ctx, ast.Load):
                found.add(node.value.id)
    return found


def state(text: str) -> Iterator[tuple[str, bool]]:
    """Each changing variable of a module, and if a comment or docstring beside it says why."""
    tree, lines = ast.parse(text), text.splitlines()
    inside = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    changed = _changed(ast.Module([*inside], []))
    above = False  # the statement before, without a line between, has a comment above it
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        above = lines[node.lineno - 2].startswith("#") or (above and bool(lines[node.lineno - 2]))
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        for target in targets:
            if isinstance(target, ast.Name) and (
                target.id in changed or _maker(node.value) in MAKERS
            ):
                yield target.id, said or above


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("known = {}\ndef f(): known[1] = 2", [("known", False)]),
        ("# why\nknown = {}\ndef f(): known.update(a=1)", [("known", True)]),
        (
            "# why\nlock = Lock()\nknown = {}\ndef f(): del known[1]",
            [("lock", True), ("known", True)],
        ),
        ("# why\na = 1\n\nlast = None\ndef f():\n    global last", [("last", False)]),
        ('last = {}\n"""Why."""\ndef f(): last[1] = 2', [("last", True)]),
        ("known = {}\nknown[1] = 2\ndef f(): return known[1]", []),
    ],
)
def test_state_is_found(text: str, found: list[tuple[str, bool]]) -> None:
    assert list(state(text)) == found


def test_state_outside_of_a_session_says_why(distributions: Any) -> None:
    found = {
        f"{file.relative_to(d.source)}: {name}"
        for d in distributions.values()
        for file in d.files
        for name, said in state(file.read_text())
        if not said
    }
    assert found == set()
