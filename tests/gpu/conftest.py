"""Tests for a GPU: ``TJ_DEVICE=cuda python -m pytest tests/gpu`` (docs/gpu.md).

Without the variable nothing here is collected. ``TJ_DEVICE=cpu`` runs what runs without a GPU, with
the stand-ins for nvFuser and CUDA graphs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj

if TYPE_CHECKING:
    from pathlib import Path

DEVICE = os.environ.get("TJ_DEVICE", "")

KINDS = ("exact", "nvfuser", "inductor", "cudagraph", "all")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out all files without ``TJ_DEVICE``."""
    return None if DEVICE else True


@pytest.fixture(autouse=True)
def _not_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins that fuse are named by each test."""
    monkeypatch.delenv("TJ_DISABLE", raising=False)


@pytest.fixture
def on_gpu() -> None:
    """Skip a test that needs CUDA."""
    if DEVICE != "cuda":
        pytest.skip("needs a CUDA device")


def session(kind: str, **options: Any) -> tj.Session:
    """A strict session that verifies: ``exact`` fuses nothing, the others have what they name."""
    real = DEVICE == "cuda"
    if not real:
        from tj_cudagraph.testing.plugin import RecorderPlugin
        from tj_nvfuser.testing.plugin import ReferencePlugin
    fuser: Any = "nvfuser" if real else ReferencePlugin()
    graphs: Any = "cudagraph" if real else RecorderPlugin()
    plugins: dict[str, tuple[Any, ...]] = {
        "exact": (),
        "nvfuser": (fuser,),
        "inductor": ("inductor",),
        "cudagraph": (graphs,),
        "all": (graphs, fuser, "inductor"),
    }
    return tj.Session(
        (*plugins[kind], "autocast", "autograd", "torch"),
        overrides={"strict": True, "check": 1, "fullgraph": False, **options},
    )


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """One of the configurations."""
    return str(request.param)


@pytest.fixture
def as_installed(kind: str) -> Callable[..., Any]:
    """``tj.jit`` in a session that does not verify, and falls back with a warning."""
    made = session(kind, strict=False, check=0)

    def jitted(f: Any, **more: Any) -> Any:
        return tj.jit(f, session=made, **more)

    return jitted


@pytest.fixture
def jit(kind: str) -> Callable[..., Any]:
    """``tj.jit`` in a session of this kind."""
    made = session(kind)

    def jitted(f: Any, **more: Any) -> Any:
        return tj.jit(f, session=made, **more)

    return jitted
