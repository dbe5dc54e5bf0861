"""Architectures of transformers and timm against eager, exact and as installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from tj_suites.architectures import ARCHITECTURES, MODES, Architecture, compared

HERE = [a for a in ARCHITECTURES if find_spec(a.package) is not None]


@pytest.mark.sampled(360)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("installed", [False, True], ids=["exact", "installed"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("architecture", HERE, ids=lambda a: a.title)
def test_an_architecture_is_eagers(architecture: Architecture, mode: str, installed: bool) -> None:
    """Results of two calls, or all that two steps of training leave behind."""
    torch.compiler.reset()
    report = compared(architecture, mode, installed=installed)
    assert report.problems == ()
    left = [w for w in report.warned if not any(b in w for b in architecture.breaks)]
    assert left == [], left
