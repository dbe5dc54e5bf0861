"""Files of plugins on disk: in the folder that the project names, listed and cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tj_core.cli import main as cli
from tj_core.disk import TAG, plugin_folder
from tj_core.host.session import Session

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.testing.plugins import FakeDist

pytestmark = pytest.mark.usefixtures("own_project")

KEEPS = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Options:
    cache_dir: str | None = None
@hookimpl
def tj_options(): return Options
@hookimpl
def tj_tags(options):
    folder = plugin_folder("keeps", options.cache_dir)
    if folder is not None:
        (folder / "kernels").mkdir(exist_ok=True)
        (folder / "kernels" / "one.bin").write_bytes(b"0123456789")
    return ()
"""


def test_the_environment_and_the_file_name_the_folder(
    fake_dist: FakeDist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_dist("keeps", KEEPS)
    (tmp_path / "pyproject.toml").write_text(f'[tool.tj]\ncache_dir = "{tmp_path / "file"}"\n')
    Session(plugins=["keeps"])
    assert (tmp_path / "file" / "keeps" / "kernels" / "one.bin").exists()
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path / "variable"))
    Session(plugins=["keeps"])
    assert (tmp_path / "variable" / "keeps" / "kernels" / "one.bin").exists()
    monkeypatch.setenv("TJ_CACHE_DIR", "none")
    Session(plugins=["keeps"])
    assert plugin_folder("keeps", "none") is None


def test_tj_cache_lists_and_clears_them_and_nothing_else(
    fake_dist: FakeDist,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_dist("keeps", KEEPS)
    fake_dist("sources")
    folder = tmp_path / "cache"
    monkeypatch.setenv("TJ_CACHE_DIR", str(folder))
    Session(plugins=["keeps"])
    plugin_folder("gone", str(folder))  # its plugin is not installed any more
    (folder / "gone" / "table.txt").write_text("12345")
    (folder / "sources").mkdir()  # the user's, though a plugin is called so
    (folder / "sources" / "mine.py").write_text("")
    assert cli.main(["cache", "list"]) == 0
    out = capsys.readouterr().out
    assert "kernels/one.bin" in out
    assert "table.txt" in out
    assert "mine.py" not in out
    assert TAG not in out
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.endswith("removed 2 files\n")
    left = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert left == ["gone/CACHEDIR.TAG", "keeps/CACHEDIR.TAG", "sources/mine.py"]
