"""The command ``tj report``, as the command line finds it."""

from __future__ import annotations

import argparse
import json
import sys

import pytest
from tj_core.cli import main as cli
from tj_report.command import report_command

PROGRAM = """
import tj_core as tj
from tj_core.testing.numeric import NumericPlugin
from tj_report import plugin

@tj.jit(plugins=[plugin, NumericPlugin()])
def doubled(x):
    return x + x

def main():
    print("running")
    doubled([1.0, 2.0])
    return doubled
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "prog.py").write_text(PROGRAM)
    yield
    sys.modules.pop("prog", None)


class _Plugins:
    """A plugin manager with the command, whatever is installed."""

    @staticmethod
    def cli_commands():
        return [("report", report_command())]


def test_the_page_of_a_program(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "PluginManager", lambda config: _Plugins)
    monkeypatch.setattr("tj_core.host.session.Session", lambda **kwargs: None)
    assert cli.main(["report", "prog.py:main", "-o", "page.html"]) == 0
    assert capsys.readouterr().out == "running\npage.html\n"
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<title>tj: prog.py:main</title>" in page
    assert "num.add" in page
    assert cli.main(["report", "prog.py:main", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"target": "prog.py:main", "file": "tj-report.html"}
    assert err == "running\n", "what the program prints"


def test_a_file_that_cannot_be_written_is_said_before_the_program_runs(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    report_command().configure(parser)
    for name, said in (("none/page.html", "there is no folder"), (".", ". is a folder")):
        with pytest.raises(SystemExit):
            parser.parse_args(["prog.py:main", "-o", name])
        assert f"argument -o/--output: {said}" in capsys.readouterr().err
