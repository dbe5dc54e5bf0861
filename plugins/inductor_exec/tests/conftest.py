"""Sessions that fuse, whatever the environment of the tests says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tj_core as tj

PLUGINS = ("inductor", "autograd", "torch")


@pytest.fixture(autouse=True)
def _not_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests run without this plugin (``TJ_DISABLE`` in tox.ini)."""
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    monkeypatch.setenv("TJ_CACHE_DIR", "none")  # faults are planted in what compiles


@pytest.fixture
def fusing(_not_disabled: None) -> Iterator[Any]:
    """``tj.jit`` in a session that fuses and verifies all; a failing region is an error."""

    def jit(f: Any, options: dict[str, Any] | None = None, strict: bool = True, **more: Any) -> Any:
        overrides = {"check": 2, "strict": strict, "inductor": options or {}}
        return tj.jit(f, session=tj.Session(PLUGINS, overrides=overrides), **more)

    return jit
