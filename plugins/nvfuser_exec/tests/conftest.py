"""Sessions with the reference in nvFuser's place, or with nvFuser under ``TJ_DEVICE=cuda``."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_nvfuser.bindings import NvFuser
from tj_nvfuser.testing.plugin import ReferencePlugin
from tj_nvfuser.testing.reference import Reference

if TYPE_CHECKING:
    from tj_nvfuser.bindings import Run, Target

PLUGINS = ("autograd", "torch")


@pytest.fixture(autouse=True)
def _not_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests run without plugins that fuse (``TJ_DISABLE`` in tox.ini)."""
    monkeypatch.delenv("TJ_DISABLE", raising=False)


class Kept(Reference):
    """The reference, which keeps definitions for nvFuser itself (``tox run -e nvfuser-real``).

    Each is kept with the inputs of its first run, and the name of the test.
    """

    def build(self, text: str) -> Run:
        """Make a function that runs the definition ``text``, and keep it."""
        run = super().build(text)
        folder = os.environ.get("TJ_NVFUSER_DEFINITIONS")
        if not folder:
            return run
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder, f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.py")
        test = f"TEST = {os.environ['PYTEST_CURRENT_TEST'].partition(' ')[0]!r}\n"
        if not path.exists():
            path.write_text(f"{text}\n{test}")

        def keeps(inputs: list[Any]) -> Any:
            given = [said(x) for x in inputs]
            results = run(inputs)
            if "INPUTS = " not in path.read_text():
                path.write_text(f"{text}\n{test}INPUTS = {given}\n")
            return results

        return keeps


def said(x: Any) -> Any:
    """An input as text: a tensor without its values."""
    if not isinstance(x, torch.Tensor):
        return x
    return str(x.dtype).removeprefix("torch."), list(x.shape), list(x.stride())


def target() -> Target:
    """The reference, or nvFuser where tests make tensors on a GPU."""
    return NvFuser() if torch.get_default_device().type == "cuda" else Kept()


@pytest.fixture
def on_reference() -> None:
    """Skip tests that are about the reference, or change it."""
    if torch.get_default_device().type != "cpu":
        pytest.skip("about the reference, which is for CPUs")


@pytest.fixture
def fusing() -> Any:
    """``tj.jit`` in a session that fuses and verifies all; a failing region is an error."""

    def jit(f: Any, options: dict[str, Any] | None = None, strict: bool = True, **more: Any) -> Any:
        overrides = {"check": 2, "strict": strict, "nvfuser_reference": options or {}}
        session = tj.Session((ReferencePlugin(target()), *PLUGINS), overrides=overrides)
        return tj.jit(f, session=session, **more)

    return jit
