"""Sessions in which nvFuser's part is played by the reference."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
from tj_nvfuser.bindings import Run
from tj_nvfuser.testing.plugin import ReferencePlugin
from tj_nvfuser.testing.reference import Reference

PLUGINS = ("autograd", "torch")


@pytest.fixture(autouse=True)
def _not_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests run without plugins that fuse (``TJ_DISABLE`` in tox.ini)."""
    monkeypatch.delenv("TJ_DISABLE", raising=False)


class Kept(Reference):
    """The reference, which keeps definitions for nvFuser itself (``tox run -e nvfuser-real``)."""

    def build(self, text: str) -> Run:
        """What runs the definition ``text``."""
        if folder := os.environ.get("TJ_NVFUSER_DEFINITIONS"):
            name = hashlib.sha256(text.encode()).hexdigest()[:16]
            Path(folder, f"{name}.py").write_text(text)
        return super().build(text)


@pytest.fixture
def fusing() -> Any:
    """``tj.jit`` in a session that fuses and verifies all; a failing region is an error."""

    def jit(f: Any, options: dict[str, Any] | None = None, strict: bool = True, **more: Any) -> Any:
        overrides = {"check": 2, "strict": strict, "nvfuser_reference": options or {}}
        session = tj.Session((ReferencePlugin(Kept()), *PLUGINS), overrides=overrides)
        return tj.jit(f, session=session, **more)

    return jit
