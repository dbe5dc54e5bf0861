"""The command ``tj conformance`` of the distribution."""

from __future__ import annotations

import argparse
import sys

import pytest
from tj_conformance.plugin import _run


def test_families_of_the_distribution_need_nothing_of_this_repository(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit) as ended:
        _run(argparse.Namespace(suite="installed", arguments=[]), None)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "module_db: 4" in printed
    assert "packages" not in printed
