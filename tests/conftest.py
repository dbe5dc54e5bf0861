"""Fixtures of the tests across distributions: every distribution of this tree, and its sources."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Distribution:
    """One folder with a ``pyproject.toml``."""

    folder: Path
    pyproject: dict[str, Any]

    @property
    def project(self) -> dict[str, Any]:
        return self.pyproject["project"]

    @property
    def name(self) -> str:
        return self.project["name"]

    @property
    def package(self) -> str:
        return self.name.replace("-", "_")

    @property
    def source(self) -> Path:
        return self.folder / "src" / self.package

    @property
    def files(self) -> list[Path]:
        return sorted(self.source.rglob("*.py"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The workspace's folder."""
    return ROOT


@pytest.fixture(scope="session")
def distributions() -> dict[str, Distribution]:
    """All distributions by name: the core, the plugins, the examples."""
    folders = [ROOT / "core"]
    for group in ("plugins", "examples"):
        folders += sorted(p.parent for p in ROOT.glob(f"{group}/*/pyproject.toml"))
    found = [Distribution(f, tomllib.loads((f / "pyproject.toml").read_text())) for f in folders]
    return {d.name: d for d in found}
