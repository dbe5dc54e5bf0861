"""The command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tj_core.cli import console, plugins
from tj_core.cli import main as cli
from tj_core.disk import Entries

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.testing.plugins import FakeDist

pytestmark = pytest.mark.usefixtures("own_project")

OPTIONS = """
from dataclasses import dataclass
@dataclass(frozen=True)
class Options:
    threads: int = 1
    mode: str = "fast"
@hookimpl
def tj_options(): return Options
"""

COMMAND = """
def configure(parser): parser.add_argument("--count", type=int, default=1)
def run(args, session):
    print("demo", args.count, session.plugins.names)
    return 7
@hookimpl
def tj_cli_commands(): return (CliCommand(NAME, "show", configure, run),)
"""


@pytest.fixture(autouse=True)
def _clean_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore ``sys.path`` and ``sys.modules``, which targets change."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("program", None)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of ``tj argv``."""
    status = cli.main(argv)
    out, err = capsys.readouterr()
    return status, out, err


Capture = pytest.CaptureFixture[str]


# ------------------------------------------------------------------------------- plugins


def test_plugins_lists_in_order(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("b", "TJ_PRIORITY = 1\n@hookimpl\ndef tj_tags(): return ()", version="2.0")
    fake_dist("a")
    fake_dist("gpu", "@hookimpl\ndef tj_available(): return 'no CUDA device'")
    fake_dist("off")
    status, out, err = run(capsys, "plugins", "--disable", "off")
    rows = [line.split() for line in out.splitlines()]
    assert (status, err) == (0, "")
    assert rows[0] == ["order", "name", "state", *plugins._COLUMNS[3:]]
    assert rows[1][:6] == ["0", "b", "loaded", "tj-b", "2.0", "tags"]
    assert rows[2][:3] == ["1", "a", "loaded"]
    assert rows[3][:3] == ["-", "gpu", "unavailable"]
    assert rows[3][-3:] == ["no", "CUDA", "device"]
    assert len(rows) == 4


def test_plugins_all_lists_those_that_take_no_part(fake_dist: FakeDist, capsys: Capture) -> None:
    for name in "abc":
        fake_dist(name)
    _, out, _ = run(capsys, "--plugins", "b", "plugins", "--all", "--disable=c")
    assert [line.split()[1:3] for line in out.splitlines()[1:]] == [
        ["b", "loaded"],
        ["a", "installed"],
        ["c", "blocked"],
    ]
    assert "disabled by cli --disable" in out


def test_plugins_json_is_stable(fake_dist: FakeDist, capsys: Capture) -> None:
    folder = fake_dist("a")
    _, out, _ = run(capsys, "plugins", "--json")
    assert json.loads(out) == [
        {
            "name": "a",
            "distribution": "tj-a",
            "version": "1.0",
            "target": "fake_a",
            "state": "loaded",
            "reason": "",
            "file": str(folder / "fake_a.py"),
            "hooks": [],
            "order": 0,
            "requested": False,
            "tied": [],
        }
    ]


def test_plugins_shows_what_is_broken_and_says_so(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("bad", "raise OSError('no')")
    fake_dist("good")
    status, out, err = run(capsys, "plugins", "--plugins=bad,good")
    assert status == 2
    assert "good" in out
    assert "failed" in out
    assert err.startswith("tj: error: plugin 'bad' (tj-bad 1.0)")
    assert "Traceback" not in err


def test_plugins_survives_an_unknown_name(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("inductor")
    status, out, err = run(capsys, "plugins", "--all", "--plugins=inductr")
    assert status == 2
    assert "inductor" in out
    assert "cli --plugins" in err
    assert "Did you mean 'inductor'?" in err


# ------------------------------------------------------------------------------- config


def test_config_prints_values_and_origins(
    fake_dist: FakeDist, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_dist("x", OPTIONS)
    fake_dist("off", OPTIONS)
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[tool.tj]\ncheck = 1\ndisable = ["off"]\n[tool.tj.x]\nthreads = 2\n[tool.tj.off]\nn = 1\n',
        "utf-8",
    )
    monkeypatch.setenv("TJ_MEMO", "no")
    _, out, _ = run(capsys, "config")
    rows = [line.split(None, 2) for line in out.splitlines()]
    assert ["check", "1", f"{file} [tool.tj]"] in rows
    assert ["memo", "false", "env TJ_MEMO"] in rows
    assert ["disable", '["off"]', f"{file} [tool.tj]"] in rows
    assert ["plugins", "-", "default"] in rows
    assert ["x.threads", "2", f"{file} [tool.tj.x]"] in rows
    assert ["x.mode", '"fast"', "default"] in rows
    assert ["off.n", "1", f"{file} [tool.tj.off]"] in rows


def test_config_json(fake_dist: FakeDist, capsys: Capture, tmp_path: Path) -> None:
    fake_dist("x", OPTIONS)
    file = tmp_path / "other.toml"
    file.write_text("[tool.tj]\ncheck = 2\n", "utf-8")
    _, out, _ = run(capsys, "--config", str(file), "config", "--json")
    data = json.loads(out)
    assert data["file"] == str(file)
    assert data["core"]["check"] == {"value": 2, "origin": f"{file} [tool.tj]"}
    assert data["plugins"]["x"]["threads"] == {"value": 1, "origin": "default"}


def test_disable_on_the_command_line_adds_to_the_config(
    fake_dist: FakeDist, capsys: Capture, tmp_path: Path
) -> None:
    for name in "abc":
        fake_dist(name)
    (tmp_path / "pyproject.toml").write_text('[tool.tj]\ndisable = ["a"]\n', "utf-8")
    _, out, _ = run(capsys, "plugins", "--disable", "b")
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["c"]


def test_a_config_error_is_one_message(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.tj]\nchek = 1\n", "utf-8")
    status, out, err = run(capsys, "config")
    assert (status, out) == (2, "")
    assert "Did you mean 'check'?" in err
    assert "Traceback" not in err


# ------------------------------------------------------------------------------- cache


def test_cache_shows_and_clears_what_tj_keeps(
    fake_dist: FakeDist, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_dist("a")
    folder = tmp_path / "cache"
    monkeypatch.setenv("TJ_CACHE_DIR", str(folder))
    assert run(capsys, "cache")[:2] == (0, f"{folder}\nkind  files  size\n")
    Entries(folder / "regions").put("key", "text" * 1000, "a region")
    (folder / "a").mkdir()
    (folder / "a" / "times.json").write_text("{}")
    others = [folder / "mine.json", folder / "notes" / "x.json", folder / "a" / "notes.txt"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("not tj's")
    _, out, _ = run(capsys, "cache", "size")
    assert [line.split() for line in out.splitlines()[2:]] == [
        ["regions", "1", "0.0", "MB"],
        ["a", "1", "0.0", "MB"],
    ]
    assert "a region" in run(capsys, "cache", "list")[1]
    data = json.loads(run(capsys, "cache", "--json")[1])
    assert data["folder"] == str(folder)
    assert [(k["kind"], k["files"]) for k in data["kinds"]] == [("regions", 1), ("a", 1)]
    (listed, _) = json.loads(run(capsys, "cache", "list", "--json")[1])["files"]
    assert (listed["what"], listed["days"]) == ("a region", 0.0)
    assert run(capsys, "cache", "clear")[:2] == (0, f"{folder}\nremoved 2 files\n")
    assert json.loads(run(capsys, "cache", "clear", "--json")[1])["removed"] == 0
    assert sorted(p for p in folder.rglob("*") if p.is_file()) == sorted(others)
    monkeypatch.setenv("TJ_CACHE_DIR", "none")
    assert "nothing is kept" in run(capsys, "cache", "clear")[1]


# ------------------------------------------------------------------------------- plugins' commands


def test_a_plugins_command_runs(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("x", COMMAND.replace("NAME", "'demo'"))
    fake_dist("y")
    status, out, _ = run(capsys, "--disable=y", "demo", "--count", "3")
    assert (status, out) == (7, "demo 3 ('x',)\n")


def test_help_shows_the_plugins_commands(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("x", COMMAND.replace("NAME", "'demo'"))
    status, out, _ = run(capsys)
    assert status == 0
    assert "demo" in out
    assert "plugins" in out


def test_a_plugin_cannot_replace_an_own_command(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("x", COMMAND.replace("NAME", "'config'"))
    status, _, err = run(capsys, "other")
    assert status == 2
    assert "plugin 'x' (tj-x 1.0) registers the command 'config'" in err


def test_own_commands_ask_no_plugin_for_commands(
    fake_dist: FakeDist, capsys: Capture, hook_calls: list[tuple[str, str]]
) -> None:
    fake_dist("x", COMMAND.replace("NAME", "'demo'"))
    run(capsys, "plugins")
    assert ("x", "tj_cli_commands") not in hook_calls


def test_help_works_where_a_plugin_does_not(fake_dist: FakeDist, capsys: Capture) -> None:
    fake_dist("x", "raise OSError")
    with pytest.raises(SystemExit) as caught:
        cli.main(["--plugins=x", "--help"])
    out, err = capsys.readouterr()
    assert caught.value.code == 0
    assert "plugins" in out
    assert "plugin 'x'" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["dmo"], "there is no command 'dmo'. Did you mean 'demo'?"),
        (["plugin"], "there is no command 'plugin'. Did you mean 'plugins'?"),
        (["nothing-like-it"], "there is no command 'nothing-like-it'.\n"),
        (["--plugin", "x", "plugins"], "tj takes no option '--plugin'. Did you mean '--plugins'?"),
        (["--disabel=x", "demo"], "tj takes no option '--disabel'. Did you mean '--disable'?"),
        (["plugins", "--jsn"], "tj plugins takes no option '--jsn'. Did you mean '--json'?"),
        (["config", "more"], "tj config takes no argument 'more'."),
        (["config", "--plugin", "x"], "tj config takes no option '--plugin'. Did you mean '--plu"),
        (["demo", "--cout", "3"], "tj demo takes no option '--cout'. Did you mean '--count'?"),
    ],
)
def test_what_is_misspelt_comes_with_what_was_meant(
    fake_dist: FakeDist, capsys: Capture, argv: list[str], words: str
) -> None:
    fake_dist("x", COMMAND.replace("NAME", "'demo'"))
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "")
    assert words in err


def test_config_checks_the_names_that_are_chosen(
    fake_dist: FakeDist, capsys: Capture, tmp_path: Path
) -> None:
    fake_dist("acme", "@hookimpl\ndef tj_executors(): return (Executor('acme', RuleTable('c')),)")
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.tj]\nexecutors = ["acmme", "..."]\n', "utf-8")
    status, out, err = run(capsys, "config")
    assert status == 2
    assert "acmme" in out
    assert f"{file} [tool.tj], 'executors': no loaded plugin has executor 'acmme'." in err
    assert "Did you mean 'acme'?" in err
    file.write_text('[tool.tj]\nexecutors = ["acme", "..."]\n', "utf-8")
    assert run(capsys, "config")[0] == 0
    file.write_text('[tool.tj]\nfrontend = "dynamo"\n', "utf-8")
    assert "no loaded plugin has frontend 'dynamo'" in run(capsys, "config")[2]


# ------------------------------------------------------------------------------- the program itself


def test_python_m_runs_it_plainly() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tj_core", "config"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TJ_CHECK": "2", "TJ_PLUGINS": ""},
    )
    assert ["check", "2", "env", "TJ_CHECK"] in [line.split() for line in done.stdout.splitlines()]
    assert "\x1b" not in done.stdout


def test_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.print_table(("key", "origin"), [("check", "[tool.tj]")])
    console.print_python("def f():\n    return 1")
    out = capsys.readouterr().out
    assert "[tool.tj]" in out
    assert "─" in out
    assert "return" in out
