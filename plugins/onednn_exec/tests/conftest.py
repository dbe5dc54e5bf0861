"""Sessions with this plugin, whatever the environment says; no user's cache is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tj_core as tj


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other tests run without this plugin (``TJ_DISABLE`` in tox.ini)."""
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path / "times"))


@pytest.fixture
def claiming() -> Any:
    """``tj.jit`` in a session where oneDNN gets every call that it can run, and all is verified."""

    def jit(f: Any, *before: str, dynamic: bool | None = None, **options: Any) -> Any:
        chosen = {"choose": "always"} | options
        overrides = {"check": 2, "strict": True, "onednn": chosen}
        plugins = ("onednn", *before, "autograd", "torch")
        return tj.jit(f, session=tj.Session(plugins, overrides=overrides), dynamic=dynamic)

    return jit
