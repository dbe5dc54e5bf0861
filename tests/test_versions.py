"""Distributions have one version, which the ranges between them admit."""

from __future__ import annotations

from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

Distributions = Any
SUPPORTED = ("3.10", "3.11", "3.12", "3.13")


def requirements(distribution: Any) -> list[Requirement]:
    project = distribution.project
    extras = project.get("optional-dependencies", {}).values()
    texts = [*project.get("dependencies", []), *(t for extra in extras for t in extra)]
    return [Requirement(text) for text in texts]


def test_versions_are_static_and_equal(distributions: Distributions) -> None:
    versions = {d.name: d.project.get("version") for d in distributions.values()}
    assert len(set(versions.values())) == 1, versions
    assert None not in versions.values(), versions
    assert [d.name for d in distributions.values() if "dynamic" in d.project] == []


def test_siblings_are_required_by_range(distributions: Distributions) -> None:
    """From this minor version to before the next: a patch release needs no other release."""
    version = Version(distributions["tj-core"].project["version"])
    major, minor = version.release[:2]
    wanted = SpecifierSet(f">={major}.{minor},<{major}.{minor + 1}")
    wrong = [
        f"{d.name}: {requirement}, not {requirement.name}{wanted}"
        for d in distributions.values()
        for requirement in requirements(d)
        if requirement.name in distributions and requirement.specifier != wanted
    ]
    assert wrong == []
    assert version in wanted


def test_plugins_require_the_core(distributions: Distributions) -> None:
    without = [
        d.name
        for d in distributions.values()
        if d.name != "tj-core" and "tj-core" not in {r.name for r in requirements(d)}
    ]
    assert without == []


def test_supported_pythons(distributions: Distributions, root: Any) -> None:
    for d in distributions.values():
        allowed = SpecifierSet(d.project["requires-python"])
        assert all(python in allowed for python in SUPPORTED), d.name
        assert "3.9" not in allowed, d.name
    listed = (root / ".python-version").read_text().split()
    assert {v.rpartition(".")[0] for v in listed} == set(SUPPORTED)


def test_every_direct_dependency_is_pinned(distributions: Distributions, root: Any) -> None:
    """constraints.txt must settle what any environment installs."""
    lines = (root / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(str(p.specifier).startswith("==") for p in pins)
    pinned = {p.name for p in pins}
    needed = {r.name for d in distributions.values() for r in requirements(d)}
    needed |= {
        Requirement(r).name
        for d in distributions.values()
        for r in d.pyproject["build-system"]["requires"]
    }
    assert sorted(needed - pinned - set(distributions)) == []


def test_builds_bring_no_pytorch(distributions: Distributions) -> None:
    """A build environment would fetch the largest PyTorch there is."""
    for d in distributions.values():
        needed = {Requirement(r).name for r in d.pyproject["build-system"]["requires"]}
        assert needed == {"hatchling"}, d.name
