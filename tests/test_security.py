"""Nothing that a file or a neighbour could have prepared is unpickled (SECURITY.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest

UNPICKLE = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"torch.load", "torch.package", "torch.jit.load", "numpy.load", "np.load", "yaml.load"}
WORDS = re.compile("|".join([*UNPICKLE, r"load\\b", "package"]))
"""Beginnings of what `unpickles` finds: sources without them need no syntax tree."""

BETWEEN_PROCESSES = {"tj_distributed/testing.py"}
"""Files that pickle between a test and its own child processes, over pipes."""


def unpickles(source: str) -> Iterator[str]:
    """Names of modules and calls in a source that turn bytes into objects of any kind."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (n.name for n in node.names if n.name.partition(".")[0] in UNPICKLE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in UNPICKLE:
            yield str(node.module)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in CALLS:
            yield ast.unparse(node)


def test_no_distribution_unpickles(distributions: Any) -> None:
    found = {
        file.relative_to(d.source.parent).as_posix(): names
        for d in distributions.values()
        for file in d.files
        if WORDS.search(text := file.read_text("utf-8")) and (names := list(unpickles(text)))
    }
    assert set(found) == BETWEEN_PROCESSES, found


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from marshal import loads", "def f():\n    return torch.load('x')\n"],
)
def test_what_unpickles_is_found(source: str) -> None:
    assert len(list(unpickles(source))) == 1
