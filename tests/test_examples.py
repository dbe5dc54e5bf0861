"""The examples, read as third parties' packages: sources and tests import public names only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

Distributions = Any

PUBLIC = re.compile(r"tj_\w+(\.extend|\.testing(\.\w+)?)?")
"""The users' page of each package, the authors' door, and the fixtures for tests."""

TEXT = re.compile(r"tj_\w+(\.\w+)+")
"""The name of a module as text, as `monkeypatch.setattr` and `importlib` take it."""


def named(file: Path) -> Iterator[str]:
    """The modules that ``file`` imports, or names in a text that is nothing else."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"), str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
            yield from (
                f"{node.module}.{alias.name}" for alias in node.names if alias.name.startswith("_")
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from [node.value] if TEXT.fullmatch(node.value) else []


def private(file: Path, own: str) -> list[str]:
    """The modules of other packages of this project that ``file`` names and that are private."""
    ours = [name for name in named(file) if re.match(r"tj_\w+", name)]
    return [n for n in ours if n.partition(".")[0] != own and not PUBLIC.fullmatch(n)]


def test_examples_name_public_modules_only(distributions: Distributions) -> None:
    examples = [d for d in distributions.values() if d.folder.parent.name == "examples"]
    assert len(examples) >= 3
    wrong = {
        str(file): found
        for example in examples
        for file in (*example.files, *sorted((example.folder / "tests").rglob("*.py")))
        if (found := private(file, example.package))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from tj_core.ir.proxy import DType", ["tj_core.ir.proxy"]),
        ("import tj_torch.internal", ["tj_torch.internal"]),
        ("patch('tj_core.host.session.libraries_of')", ["tj_core.host.session.libraries_of"]),
        ("from tj_core.extend import _secret", ["tj_core.extend._secret"]),
        ("import tj_core as tj; from tj_mine.deep.inside import f", []),
        ("from tj_core.extend import Claim; from tj_core.testing.plugins import fake_dist", []),
    ],
)
def test_what_is_private_is_found(tmp_path: Path, line: str, found: list[str]) -> None:
    (tmp_path / "file.py").write_text(line)
    assert private(tmp_path / "file.py", "tj_mine") == found
