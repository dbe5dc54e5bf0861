"""Fixtures for all tests of the core, and the check that tests leave the environment alone.

Examples of random tests have no deadline: a busy machine fails no test.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tj_core.testing.plugins import env_unchanged, fake_dist, hook_calls, only_fake_dists

if TYPE_CHECKING:
    from pathlib import Path

settings.register_profile("core", deadline=None)
settings.load_profile("core")

__all__ = ["env_unchanged", "fake_dist", "hook_calls", "only_fake_dists"]


@pytest.fixture(autouse=True)
def _guarded(env_unchanged: None) -> None:
    """Every test must leave the environment as it was."""


@pytest.fixture
def own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_fake_dists: object) -> None:
    """An empty project, without the config, variables and plugins of the tests' user."""
    for name in [n for n in os.environ if n.startswith("TJ_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
