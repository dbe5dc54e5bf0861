"""Pages of the documentation: their links and anchors, the navigation, and a copy to build from.

`stage` lays out the pages of ``docs/`` and of the root as they stand in the tree, so that links
between them stay as they are. Links to other files go to the source, if its address is known.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
AT_ROOT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "RELEASING.md")
"""Pages beside ``docs/``. The first is the site's opening page, ``index.md`` there."""

FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<to>[^)\s]+)\)")
HEADING = re.compile(r"^(#{1,6}) +(.*?) *#*$", re.MULTILINE)


def pages() -> list[Path]:
    """Every page of the site, in the tree."""
    return [*(ROOT / name for name in AT_ROOT), *sorted(DOCS.glob("*.md"))]


def links(text: str) -> list[str]:
    """Targets of the links of a page; code has none."""
    plain = FENCE.sub("", text)
    spans = SPAN.sub(lambda m: "x" if "](" in m[0] else m[0], plain)
    return [m["to"] for m in LINK.finditer(spans)]


def anchors(text: str) -> set[str]:
    """Anchors of the headings of a page, as GitHub and MyST make them."""
    seen: Counter[str] = Counter()
    found = set()
    for _, title in HEADING.findall(FENCE.sub("", text)):
        said = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", said.strip().lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken(page: Path) -> list[str]:
    """Relative links of a page to files, or to anchors in pages, that do not exist."""
    wrong = []
    for link in links(page.read_text("utf-8")):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        here = target.exists()
        if here and anchor and target.suffix == ".md":
            here = anchor in anchors(target.read_text("utf-8"))
        if not here:
            wrong.append(link)
    return wrong


def sections() -> Iterator[tuple[str, list[Path]]]:
    """The navigation: titles of the sections of docs/README.md, each with the pages it links to."""
    seen: set[Path] = set()
    for part in re.split(r"^## ", (DOCS / "README.md").read_text("utf-8"), flags=re.MULTILINE):
        title, _, text = part.partition("\n")
        found = [(DOCS / link.partition("#")[0]).resolve() for link in links(text)]
        listed = [p for p in dict.fromkeys(found) if p.suffix == ".md" and p not in seen]
        seen.update(listed)
        if listed:
            yield ("Overview" if title.startswith("#") else title), listed


def place(page: Path) -> str:
    """The path of a page in the site's sources."""
    path = page.relative_to(ROOT).as_posix()
    return "index.md" if path == "README.md" else path


def stage(folder: Path, source: str = "") -> list[Path]:
    """Lay out all pages in ``folder``, with links to other files below the address ``source``."""
    staged = []
    for page in pages():
        target = folder / place(page)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = relinked(page, page.read_text("utf-8"), source)
        if place(page) == "index.md":
            text += navigation()
        target.write_text(text, "utf-8")
        staged.append(target)
    for image in sorted([*DOCS.glob("*.png"), *DOCS.glob("*.svg")]):
        shutil.copy(image, folder / "docs" / image.name)
    return staged


def relinked(page: Path, text: str, source: str) -> str:
    """A page's text, in which links to files that are no pages lead to the source, or are gone."""
    known = {path.resolve() for path in pages()}

    def replaced(match: re.Match[str]) -> str:
        path, hash_, anchor = match["to"].partition("#")
        if "://" in match["to"] or not path:
            return match[0]
        target = (page.parent / path).resolve()
        if target == (ROOT / "README.md"):
            up = "../" * len(PurePosixPath(place(page)).parents[:-1])
            return f"[{match['text']}]({up}index.md{hash_}{anchor})"
        if target in known or target.suffix in (".png", ".svg"):
            return match[0]
        below = target.relative_to(ROOT).as_posix()
        return f"[{match['text']}]({source}/{below})" if source else match["text"]

    parts, done = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(replaced, text[done : fence.start()]), fence[0]]
        done = fence.end()
    return "".join([*parts, LINK.sub(replaced, text[done:])])


def navigation() -> str:
    """The toctrees of the opening page: a section each, hidden, as the theme shows them beside."""
    trees = [("", [DOCS / "README.md"]), *sections()]
    return "".join(tree(title, [p for p in listed if p.exists()]) for title, listed in trees)


def tree(title: str, listed: list[Path]) -> str:
    """A toctree in MyST."""
    caption = f":caption: {title}\n" if title else ""
    names = "\n".join(place(page).removesuffix(".md") for page in listed)
    return f"\n```{{toctree}}\n:hidden:\n{caption}\n{names}\n```\n"
