"""All suites can be reached by ``tj conformance``, and say so; misspelt names are no tracebacks."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

import pytest
from tj_conformance import plugin
from tj_conformance.suites import SUITES, usage
from tj_core.extend import TjError


def run(suite: str, *arguments: str) -> Any:
    given = argparse.Namespace(suite=suite, arguments=[*arguments])
    return plugin._run(given, None)  # type: ignore[arg-type]


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("suite", SUITES)
def test_help_says_how_the_suite_is_called(
    suite: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(suite, "--help")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: tj conformance {suite} ")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    ("suite", "argument", "message"),
    [
        ("tally", "flaot32", "no 'flaot32'; there are float32, "),
        ("tally", "float32:8/8", "a part is K/N, as 0/8"),
        ("gradients", "frist:float32", "no 'frist'; there are first, "),
        ("gradients", "first:flaot32", "'flaot32' is no data type"),
        ("installed", "op_bd", "no family 'op_bd'; there are op_db:float32"),
    ],
)
def test_names_that_are_none(
    suite: str, argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(suite, argument)
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(f"usage: tj conformance {suite} ")
    assert message in said


def test_a_package_that_a_suite_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    for name in ("gradients.orders", "gradients.random_programs", "seeds"):
        monkeypatch.delitem(sys.modules, f"tj_conformance.{name}", raising=False)
    with pytest.raises(TjError, match="tj conformance orders needs the package 'hypothesis'"):
        run("orders", "--help")


def test_every_module_is_there() -> None:
    names = {usage(f"tj_conformance.{module}") for module, _ in SUITES.values()}
    assert names == {f"tj conformance {name}" for name in SUITES}
    for module, _ in SUITES.values():
        assert importlib.util.find_spec(f"tj_conformance.{module}") is not None
