"""The command ``tj conformance`` of the distribution."""

from __future__ import annotations

import argparse
import importlib.util
import sys

import pytest
from tj_conformance.plugin import SWEEPS, _run


@pytest.mark.parametrize("module", SWEEPS.values())
def test_sweeps_are_programs(module: str) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None
    if found.submodule_search_locations:
        assert importlib.util.find_spec(f"{module}.__main__") is not None


def test_families_of_the_distribution_need_nothing_of_this_repository(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit) as ended:
        _run(argparse.Namespace(sweep="installed", arguments=[]), None)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "module_db: 4" in printed
    assert "packages" not in printed
