"""Forms of packages: a hook of plugins, asked by a session and without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import tj_core as tj
from tj_core.contract.packages import Packaging
from tj_core.errors import PackageError, PluginError
from tj_core.host.formats import package_formats
from tj_core.testing.plugins import load_plugins as manager

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.testing.plugins import FakeDist

pytestmark = pytest.mark.usefixtures("own_project")

FORM = """
from tj_core.extend import PackageFormat
@hookimpl
def tj_package_formats():
    load = lambda path: f"loaded {path.name}"
    return (PackageFormat("texts", lambda *args: None, load, lambda p: p.suffix == ".x"),)
"""


def test_hook_tj_package_formats(fake_dist: FakeDist, tmp_path: Path) -> None:
    fake_dist("x", FORM)
    ((name, record),) = manager().package_formats()
    assert (name, record.name) == ("x", "texts")
    (found,) = package_formats()
    assert found.name == "texts"
    assert tj.load(tmp_path / "program.x") == "loaded program.x"
    with pytest.raises(PackageError, match=r"program\.y is no package of a known form \(texts\)"):
        tj.load(tmp_path / "program.y")


def test_a_disabled_plugin_has_no_form(
    fake_dist: FakeDist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_dist("x", FORM)
    monkeypatch.setenv("TJ_DISABLE", "x")
    with pytest.raises(PackageError, match=r"known form \(none\)"):
        tj.load(tmp_path / "program.x")


def test_a_plugin_that_cannot_be_imported_is_passed_over(fake_dist: FakeDist) -> None:
    fake_dist("broken", "import nothing_of_this_name")
    fake_dist("x", FORM)
    assert [record.name for record in package_formats()] == ["texts"]


def test_another_record_is_an_error_that_names_the_plugin(fake_dist: FakeDist) -> None:
    fake_dist("x", "@hookimpl\ndef tj_package_formats(): return (3,)")
    with pytest.raises(PluginError, match=r"plugin 'x' .* must return PackageFormat records"):
        [*package_formats()]


def test_members_and_restore_come_together() -> None:
    with pytest.raises(PluginError, match="both members and restore"):
        Packaging(members=lambda regions: {})
