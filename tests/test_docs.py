"""The examples in the documentation run: every python block, in a namespace per file.

A block marked ``python no-run`` is left out: it shows what cannot run by itself.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each block that runs."""
    for match in BLOCK.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match[1]


@pytest.fixture
def namespace(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """That of a module, as dataclasses and pickle want to find it."""
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return vars(module)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_examples_run(
    page: Path, namespace: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(blocks(page.read_text("utf-8")))
    if any(re.search(r"^import torch\b", text, re.MULTILINE) for _, text in found):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    for line, text in found:
        # Lines of the page, so that an error points there.
        exec(compile("\n" * (line - 1) + text, str(page), "exec"), namespace)


def test_blocks_are_found() -> None:
    text = (
        "a\n```python\nx = 1\n```\n```python no-run\ny\n```\n```toml\nz\n```\n```python\nu\n```\n"
    )
    assert list(blocks(text)) == [(3, "x = 1\n"), (12, "u\n")]
    assert list(blocks((ROOT / "docs" / "tags.md").read_text("utf-8")))
