"""Installed plugins, listed from metadata alone."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tj_core.errors import PluginConflictError
from tj_core.host.discovery import Found, core_version, discover, installed_version

if TYPE_CHECKING:
    from tj_core.testing.plugins import FakeDist

pytestmark = pytest.mark.usefixtures("own_project")


def test_lists_name_distribution_version_and_target(only_fake_dists: FakeDist) -> None:
    only_fake_dists("one", distribution="some-one", version="2.3", target="fake_one")
    assert discover() == (Found("one", "some-one", "2.3", "fake_one"),)


def test_sorts_by_name_whatever_the_order_of_the_path(only_fake_dists: FakeDist) -> None:
    for name in ("b", "c", "a"):
        only_fake_dists(name)
    assert [f.name for f in discover()] == ["a", "b", "c"]


def test_imports_no_plugin(only_fake_dists: FakeDist) -> None:
    only_fake_dists("boom", "raise RuntimeError('imported')")
    assert discover()[0].name == "boom"
    assert "fake_boom" not in sys.modules


def test_importing_tj_discovers_nothing() -> None:
    code = (
        "import tj_core, tj_core.host.discovery, sys; "
        "assert 'importlib_metadata' not in sys.modules; "
        "assert 'pluggy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_importing_the_plugin_manager_discovers_nothing() -> None:
    code = "import tj_core.host.plugins, sys; assert 'importlib_metadata' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_name_in_two_distributions_is_an_error(only_fake_dists: FakeDist) -> None:
    only_fake_dists("same", distribution="tj-a", version="1.0")
    only_fake_dists("same", distribution="tj-b", version="2.0", target="fake_other")
    with pytest.raises(PluginConflictError) as caught:
        discover()
    for part in ("'same'", "tj-a 1.0", "tj-b 2.0", "fake_same", "fake_other"):
        assert part in str(caught.value)


def test_two_entries_of_one_distribution_are_an_error(only_fake_dists: FakeDist) -> None:
    folder = only_fake_dists("same")
    file = next(folder.glob("*.dist-info")) / "entry_points.txt"
    file.write_text("[tj]\nsame = fake_same\nsame = fake_other\n", "utf-8")
    with pytest.raises(PluginConflictError):
        discover()


def test_a_distribution_found_twice_counts_once(only_fake_dists: FakeDist) -> None:
    only_fake_dists("same")
    only_fake_dists("same")
    assert len(discover()) == 1


def test_a_found_plugin_in_words() -> None:
    assert str(Found("x", "tj-x", "1.2", "tj_x.plugin")) == "plugin 'x' (tj-x 1.2)"
    assert str(Found("x", "inline", "", "X")) == "plugin 'x' (inline)"


def test_installed_version(only_fake_dists: FakeDist) -> None:
    only_fake_dists("x", distribution="tj-made-up", version="4.5")
    assert installed_version("tj-made-up") == "4.5"
    assert installed_version("tj-never-made") is None


def test_core_version_without_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tj_core.host.discovery.installed_version", lambda name: None)
    assert core_version() == "0+unknown"
