"""Versions, notes and files of a release.

``python scripts/release.py 0.2.0`` writes a version into every distribution, with the ranges in
which they ask for each other. ``--check v0.2.0`` fails unless that tag is the tree's version.
``--notes 0.2.0`` prints the release's section of CHANGELOG.md. ``--build FOLDER`` builds a source
archive and a wheel of each distribution that is published, with the hatchling that is installed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r'^version = "(.+)"$', re.MULTILINE)
RANGE = re.compile(r"(?<=[\"'])(tj-[a-z-]+(?:\[[a-z-]+\])?)>=[\d.]+,<[\d.]+(?=[\"'])")
"""A requirement of another distribution of this tree, in a pyproject.toml."""


def projects() -> list[Path]:
    """The files of all distributions: the core's first."""
    found = [ROOT / "core" / "pyproject.toml"]
    return found + [
        p for g in ("plugins", "examples") for p in sorted(ROOT.glob(f"{g}/*/pyproject.toml"))
    ]


def version() -> str:
    """The version of the tree."""
    match = VERSION.search(projects()[0].read_text("utf-8"))
    assert match, "core/pyproject.toml has no version"
    return match[1]


def with_version(text: str, new: str) -> str:
    """A pyproject.toml with another version, and with ranges of that minor release."""
    major, minor = (int(part) for part in new.split(".")[:2])
    text = RANGE.sub(rf"\g<1>>={major}.{minor},<{major}.{minor + 1}", text)
    return VERSION.sub(f'version = "{new}"', text, count=1)


def notes(changelog: str, wanted: str) -> str:
    """The section of a release in the text of CHANGELOG.md.

    :raises SystemExit: if there is none.
    """
    parts = re.split(r"^## ", changelog, flags=re.MULTILINE)
    for part in parts[1:]:
        title, _, text = part.partition("\n")
        if title.split()[0] == wanted:
            return text.strip()
    sys.exit(f"CHANGELOG.md has no section on {wanted}; towncrier build makes it")


def build(folder: Path) -> None:
    """Build a source archive and a wheel of the core and of each plugin."""
    for file in projects():
        if file.is_relative_to(ROOT / "examples"):
            continue
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder.resolve())]
        subprocess.run(command, cwd=file.parent, check=True)


def main(arguments: list[str]) -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", nargs="?", help="the version to write")
    parser.add_argument("--check", metavar="TAG", help="fail unless the tag is the tree's version")
    parser.add_argument("--notes", metavar="VERSION", help="print the notes of a release")
    parser.add_argument("--build", metavar="FOLDER", type=Path, help="build what is published")
    given = parser.parse_args(arguments)
    if given.version:
        # A candidate, 0.2.0rc1, is not in the range >=0.2,<0.3 of its own distributions.
        if not re.fullmatch(r"\d+\.\d+\.\d+", given.version):
            sys.exit(f"{given.version} is no version like 0.2.0")
        for file in projects():
            file.write_text(with_version(file.read_text("utf-8"), given.version), "utf-8")
    if given.check and given.check != f"v{version()}":
        sys.exit(f"the tag is {given.check}, and the version of the tree {version()}")
    if given.notes:
        print(notes((ROOT / "CHANGELOG.md").read_text("utf-8"), given.notes))
    if given.build:
        build(given.build)


if __name__ == "__main__":
    main(sys.argv[1:])
