"""Fixtures of the programs that run as users have tj installed."""

from __future__ import annotations

import pytest
from tj_inductor.adapter import names
from tj_suites.upstream.interpreting import interpreted


@pytest.fixture
def interpreting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch's kernels run the regions that Inductor would compile."""
    # Where tj-inductor keeps the name that it found in PyTorch, perhaps in an earlier test.
    monkeypatch.setitem(vars(names), "compile_fx_inner", interpreted)
