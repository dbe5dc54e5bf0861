"""Sessions that fuse, whatever the environment of the tests says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import tj_core as tj
from tj_inductor.compiler import Compiler

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


class Texts(NamedTuple):
    """The texts of kernels: as Inductor has ``written`` them, and as they are ``compiled``."""

    written: list[str]
    compiled: list[str]


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Texts:
    """The texts of the kernels that the test makes."""
    seen = Texts([], [])
    changed = Compiler.changed

    def noted(self: Compiler, text: str) -> str:
        made = changed(self, text)
        seen.written.append(text)
        seen.compiled.append(made)
        return made

    monkeypatch.setattr(Compiler, "changed", noted)
    return seen
