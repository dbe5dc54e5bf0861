"""A PyTorch whose Dynamo tj-torch cannot correct: programs run in eager, with a warning."""

from __future__ import annotations

import pytest
import tj_core as tj
import torch
from torch._dynamo.variables import misc


def test_a_name_that_dynamo_lacks_is_one_clear_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(misc.SuperVariable, "_resolved_getattr_and_source")
    monkeypatch.setenv("TJ_STRICT", "0")
    g = tj.jit(lambda x: x.sin(), session=tj.Session(["torch"]))
    x = torch.ones(2)
    missing = r"does not know PyTorch .*: members of classes: no .*_resolved_getattr_and_source"
    with pytest.warns(tj.TjWarning, match=missing):
        assert torch.equal(g(x), x.sin())
    assert torch.equal(g(x), x.sin())
    assert len(tj.stats(g).fallbacks) == 1
