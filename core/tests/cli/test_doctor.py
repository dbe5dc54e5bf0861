"""Findings of ``tj doctor``, with the commands that mend them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tj_core.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.testing.plugins import FakeDist

pytestmark = pytest.mark.usefixtures("own_project")

Capture = pytest.CaptureFixture[str]

FINDINGS = """
@hookimpl
def tj_findings(session, every, names):
    found = [Finding("chips", f"session: {session is not None}, {every}, {names}")]
    return (*found, Finding("chips", "no driver", "bad", "install-driver"))
"""


def doctor(capsys: Capture, *argv: str) -> tuple[int, list[dict[str, str]]]:
    """Exit status and findings of ``tj doctor argv``."""
    status = cli.main(["doctor", "--json", *argv])
    return status, json.loads(capsys.readouterr().out)


def of(topic: str, found: list[dict[str, str]]) -> list[tuple[str, str, str]]:
    """The findings on one topic."""
    return [(f["state"], f["text"], f["remedy"]) for f in found if f["topic"] == topic]


def test_all_is_well(fake_dist: FakeDist, capsys: Capture, monkeypatch: Any) -> None:
    monkeypatch.setenv("TJ_CACHE_DIR", "none")
    fake_dist("a", requires=["pluggy>=1", "nowhere; extra == 'more'"])
    status, found = doctor(capsys)
    assert status == 0
    assert {f["state"] for f in found} == {"good"}
    assert of("plugins", found) == [("good", "a (tj-a 1.0): loaded", "")]
    assert of("requirements", found)[0][1] == "all are installed, in versions that fit"
    assert of("session", found) == [("good", "starts; executors: none", "")]
    assert [f["topic"] for f in found][:2] == ["python", "tj-core"]
    assert "nothing is kept" in of("cache", found)[0][1]


def test_states_of_plugins(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("bad", "raise OSError('no such library')")
    fake_dist("gpu", "@hookimpl\ndef tj_available(): return 'no device'")
    fake_dist("old", "@hookimpl\ndef tj_lacking(): return 'it is old'")
    status, found = doctor(capsys)
    assert status == 1
    loaded, bad, gpu = of("plugins", found)
    assert loaded == ("note", "old (tj-old 1.0): it is old", "")
    assert bad[0] == "bad"
    assert "no such library" in bad[1]
    assert 'disable = ["bad"]' in bad[2]
    assert gpu == ("note", "gpu (tj-gpu 1.0): unavailable, no device", "")


def test_requirements_that_are_missing_or_too_old(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("a", requires=["pluggy>=99", "tj-nowhere<2,>=1"])
    fake_dist("b", requires=["pluggy>=99"])
    status, found = doctor(capsys)
    assert status == 1
    old, missing = of("requirements", found)
    assert old[1].startswith("tj-a, tj-b needs pluggy>=99, installed is 1.")
    assert old[2] == "pip install 'pluggy>=99'"
    assert missing[1:] == (
        "tj-a needs tj-nowhere<2,>=1, installed is none",
        "pip install 'tj-nowhere<2,>=1'",
    )


def test_conflicts_and_a_broken_config(
    fake_dist: FakeDist, capsys: Capture, tmp_path: Path
) -> None:
    fake_dist("x")
    fake_dist("x", distribution="tj-another-x")
    status, found = doctor(capsys)
    assert status == 1
    assert any("two installed plugins are called 'x'" in text for _, text, _ in of("config", found))
    (tmp_path / "pyproject.toml").write_text('[tool.tj]\nplugins = ["nowhere"]\n', "utf-8")
    _, found = doctor(capsys)
    assert any("no plugin 'nowhere' is installed" in text for _, text, _ in of("config", found))


def test_a_session_that_cannot_start(fake_dist: FakeDist, capsys: Capture) -> None:
    for name in "ab":
        fake_dist(name, "@hookimpl\ndef tj_tags(): return (Tag('MINE', ''),)")
    status, found = doctor(capsys)
    assert status == 1
    ((state, text, remedy),) = of("session", found)
    assert state == "bad"
    assert "two Tag records have the name 'MINE'" in text
    assert "disable" in remedy


def test_plugins_add_findings(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("x", FINDINGS)
    fake_dist("y", "@hookimpl\ndef tj_findings(): return 1 / 0")
    status, found = doctor(capsys, "--all")
    assert status == 1
    assert of("chips", found) == [
        ("good", "session: True, True, False", ""),
        ("bad", "no driver", "install-driver"),
    ]
    assert "ZeroDivisionError" in of("y", found)[0][1]


def test_as_text(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("x", FINDINGS)
    assert cli.main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if "no driver" in line)
    assert lines[at].split() == ["BAD", "chips", "no", "driver"]
    assert lines[at + 1].strip() == "to mend it: install-driver"


def test_a_cache_that_others_can_write_to(
    fake_dist: FakeDist, capsys: Capture, monkeypatch: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    (folder / "x").write_text("12345")
    monkeypatch.setenv("TJ_CACHE_DIR", str(folder))
    assert "1 files, 0.0 MB" in of("cache", doctor(capsys)[1])[0][1]
    folder.chmod(0o777)
    ((state, text, remedy),) = of("cache", doctor(capsys)[1])
    assert state == "bad"
    assert f"{folder} is not used" in text
    assert remedy == f"chmod -R go-w {folder}"
    monkeypatch.setattr("os.getuid", lambda: 12345)
    ((_, text, remedy),) = of("cache", doctor(capsys)[1])
    assert "belongs to" in text
    assert "TJ_CACHE_DIR" in remedy
