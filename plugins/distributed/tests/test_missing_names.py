"""A private name that PyTorch lacks costs the agreement of ranks, with one warning."""

from __future__ import annotations

import dataclasses

import pytest
import tj_core as tj
import torch
from tj_distributed import names, plugin, probes
from tj_distributed.options import Options
from tj_torch.capture.lost_features import forget_said
from torch import distributed


@pytest.mark.probe
def test_the_probe_finds_nothing() -> None:
    probes.agreeing()
    assert names.TABLE.missing() == {}


@pytest.mark.parametrize("name", names.NAMES)
def test_a_missing_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = names.NAMES[name]
    monkeypatch.setitem(names.NAMES, name, dataclasses.replace(known, path="torch._no.such"))
    monkeypatch.setattr(names.TABLE, "lost", {})
    monkeypatch.setattr(names.TABLE, "looked", False)
    forget_said(["tj-distributed"])
    with pytest.warns(tj.TjWarning, match="ranks that agree"):
        session = tj.Session(["torch", "distributed"])
    f = tj.jit(lambda x: x + 1, session=session)
    assert f(torch.ones(2)).tolist() == [2, 2]
    assert "distributed.begin" not in str(tj.last_trace(f))
    assert not plugin.tj_transforms(Options())


def test_the_probe_finds_an_announcement_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    if not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    monkeypatch.setattr("tj_distributed.agreement.Agreement.begin", lambda self, found: None)
    with pytest.raises(AssertionError, match="has not run"):
        probes.agreeing()
