"""Sessions with this plugin, whatever the environment says; no user's cache is used."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_onednn import kernels

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other tests run without this plugin (``TJ_DISABLE`` in tox.ini)."""
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path / "times"))


@functools.cache
def multiplies_bfloat16() -> bool:
    """Test if oneDNN has bfloat16 products on this processor: it does with AVX-512."""
    x = torch.ones(4, 16, dtype=torch.bfloat16)
    try:
        kernels.linear(x, x)
    except RuntimeError:
        return False
    return True


@pytest.fixture(autouse=True)
def _processor(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("bfloat16") and not multiplies_bfloat16():
        pytest.skip("oneDNN has no products of bfloat16 on this processor")


@pytest.fixture
def claiming() -> Any:
    """``tj.jit`` in a session where oneDNN gets every call that it can run, and all is verified."""

    def jit(f: Any, *before: str, dynamic: bool | None = None, **options: Any) -> Any:
        chosen = {"choose": "always"} | options
        overrides = {"check": 2, "strict": True, "onednn": chosen}
        plugins = ("onednn", *before, "autograd", "torch")
        return tj.jit(f, session=tj.Session(plugins, overrides=overrides), dynamic=dynamic)

    return jit
