"""The pages of the documentation hang together: links, anchors, navigation, and the reference.

The site itself is built by ``tox run -e docs``; nothing here needs the tool.
"""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "scripts" / "site"
PAGES = runpy.run_path(str(SITE / "pages.py"))
ALL = PAGES["pages"]()
BESIDE = [
    ROOT / "changes" / "README.md",
    *sorted(ROOT.glob("*/*/README.md")),
    ROOT / "core/README.md",
]
"""Pages that are no part of the site."""


@pytest.mark.parametrize("page", [*ALL, *BESIDE], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    assert PAGES["broken"](page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    other = tmp_path / "other.md"
    other.write_text(
        "# A `name(x)`, twice\n\n## A name\n\n## A name\n\n```\n# none\n```\n", "utf-8"
    )
    page = tmp_path / "page.md"
    good = (
        "[a](other.md#a-namex-twice) [b](other.md#a-name-1) [c](https://x.y/z) [`d`](#own)\n# Own\n"
    )
    page.write_text(good + "```\n[e](code.md)\n```\n`[f](span.md)`\n", "utf-8")
    assert PAGES["broken"](page) == []
    page.write_text("[a](other.md#none) [b](gone.md) [c](#gone) [`d`](other.md#a-name-2)", "utf-8")
    wrong = ["other.md#none", "gone.md", "#gone", "other.md#a-name-2"]
    assert PAGES["broken"](page) == wrong


def test_the_navigation_has_every_page_once() -> None:
    listed = Counter(page for _, found in PAGES["sections"]() for page in found)
    opening = {ROOT / "README.md", ROOT / "docs" / "README.md"}
    assert sorted(set(ALL) - set(listed) - opening) == []
    assert [page for page, times in listed.items() if times > 1 or not page.exists()] == []


def test_the_staged_pages_link_to_each_other_and_to_the_source(tmp_path: Path) -> None:
    staged = PAGES["stage"](tmp_path, "https://example.org/blob/main")
    assert len(staged) == len(ALL)
    assert [(page.name, PAGES["broken"](page)) for page in staged if PAGES["broken"](page)] == []
    text = (tmp_path / "docs" / "gpu.md").read_text("utf-8")
    assert "](https://example.org/blob/main/plugins/" in text
    PAGES["stage"](tmp_path)
    assert "](../plugins/" not in (tmp_path / "docs" / "gpu.md").read_text("utf-8")
    trees = re.findall(
        r"^:caption: (.*)$", (tmp_path / "index.md").read_text("utf-8"), re.MULTILINE
    )
    assert trees == ["Overview", "For users", "For authors of plugins", "For maintainers"]


def test_the_readme_starts_with_how_to_install_and_an_example() -> None:
    titles = re.findall(r"^## (.*)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert titles[:3] == ["Installing", "An example", "Two commands"]


def test_the_reference_is_what_the_code_says() -> None:
    pytest.importorskip("torch")
    page = runpy.run_path(str(SITE / "reference.py"))["page"]()
    written = (ROOT / "docs" / "reference.md").read_text("utf-8")
    assert page == written, "python tests/test_docs.py writes it anew"


def test_the_reference_has_every_command_and_plugin_with_options() -> None:
    pytest.importorskip("torch")
    from tj_core.internal import OWN_COMMANDS

    page = (ROOT / "docs" / "reference.md").read_text("utf-8")
    assert [name for name in OWN_COMMANDS if f"\n### `tj {name}`\n" not in page] == []
    options = re.findall(r"^### `\[tool\.(tj[\w.]*)\]`$", page, re.MULTILINE)
    declared = [
        f"tj.{file.parent.name.removeprefix('tj_')}"
        for file in sorted(ROOT.glob("plugins/*/src/*/plugin.py"))
        if "def tj_options" in file.read_text("utf-8")
    ]
    assert sorted(options) == sorted(["tj", *declared])
