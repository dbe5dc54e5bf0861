"""Every distribution has the same shape, so that any of them can be copied."""

from __future__ import annotations

from typing import Any

import pytest

Distributions = Any


def plugins(distributions: Distributions) -> list[Any]:
    return [d for d in distributions.values() if d.name != "tj-core"]


def test_one_name_in_four_places(distributions: Distributions) -> None:
    """Distribution tj-x, import tj_x, entry point x (and so the table ``[tool.tj.x]``)."""
    for d in plugins(distributions):
        entry = d.package.removeprefix("tj_")
        assert d.project["entry-points"]["tj"] == {entry: f"{d.package}.plugin"}, d.name
        assert (d.source / "plugin.py").is_file(), d.name


def test_entry_points_name_what_exists(distributions: Distributions) -> None:
    for d in distributions.values():
        groups = d.project.get("entry-points", {})
        targets = [t for group in groups.values() for t in group.values()]
        for target in [*targets, *d.project.get("scripts", {}).values()]:
            module = target.partition(":")[0].replace(".", "/")
            path = d.folder / "src" / module
            assert path.with_suffix(".py").is_file() or path.is_dir(), f"{d.name}: {target}"


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "tests"])
def test_self_contained(distributions: Distributions, name: str) -> None:
    assert [d.name for d in distributions.values() if not (d.folder / name).exists()] == []


ABOUT_PROGRAMS = {"functionalize/aliasing"}
"""Folders of tests of one kind of programs, which many files of the folder above are about."""


def test_folders_of_tests_mirror_the_sources(distributions: Distributions) -> None:
    for d in distributions.values():
        rooms = {p.relative_to(d.source).as_posix() for p in d.source.rglob("*") if p.is_dir()}
        folders = {p.parent for p in (d.folder / "tests").rglob("test_*.py")}
        found = {f.relative_to(d.folder / "tests").as_posix() for f in folders}
        assert found - {"."} - ABOUT_PROGRAMS <= rooms, d.name


def test_typed(distributions: Distributions) -> None:
    assert [d.name for d in distributions.values() if not (d.source / "py.typed").is_file()] == []


def test_one_license(distributions: Distributions, root: Any) -> None:
    text = (root / "LICENSE").read_text()
    assert text.split()[:3] == ["Apache", "License", "Version"]
    for d in distributions.values():
        assert d.project["license"] == "Apache-2.0", d.name
        assert d.project["license-files"] == ["LICENSE"], d.name
        assert (d.folder / "LICENSE").read_text() == text, d.name


def test_packages_import_nothing_by_themselves(distributions: Distributions) -> None:
    """A plugin's ``__init__`` runs before its plugin module: what it imports, listing pays."""
    for d in plugins(distributions):
        lines = (d.source / "__init__.py").read_text().splitlines()
        code = [line for line in lines if line.startswith(("import ", "from "))]
        assert all(line.startswith("from __future__") for line in code), d.name
