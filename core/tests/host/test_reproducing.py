"""A region that failed leaves a script, which compiles and runs it again."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
from tj_core import extend
from tj_core.errors import PluginError, TjError, TjWarning
from tj_core.host.session import Session
from tj_core.testing.fusing import LoopPlugin
from tj_core.testing.numeric import NumericPlugin

pytestmark = pytest.mark.usefixtures("own_project")

X, Y = [1.0, -2.0, 4.0], [0.5, 3.0, 2.0]


def f(x: Any, y: Any) -> Any:
    return -(x + y) * x


class Broken(LoopPlugin):
    """An executor that fails in the way ``how``, until this is None."""

    def __init__(self, how: str | None) -> None:
        super().__init__()
        self.how = how

    def fuse(self, region: Any) -> Any:
        if self.how == "compiling":
            raise RuntimeError('the compiler says """no"""\\')
        fused = super().fuse(region)
        if self.how == "running":
            return extend.Fused(lambda *args: [x[:-1] for x in fused.function(*args)])
        if self.how == "computing":
            return extend.Fused(lambda *args: [[v + 1 for v in x] for x in fused.function(*args)])
        return fused


def session(loop: Any) -> Session:
    return Session([loop, NumericPlugin()], overrides={"strict": False})


def saved(how: str) -> Path:
    """The script for a region that fails while ``how``."""
    with pytest.warns(TjWarning, match="python .* shows it") as caught:
        found = tj.jit(f, session=session(Broken(how)))(X, Y)
    assert found == [-(a + b) * a for a, b in zip(X, Y, strict=True)]
    (path,) = re.findall(r"python (\S+\.py) shows it", str(caught[0].message))
    return Path(path)


def run(script: Path, monkeypatch: pytest.MonkeyPatch, how: str | None) -> None:
    """Run a script with the plugins of this file as the installed ones."""
    reproduce: Callable[..., None] = extend.reproduce
    here = session(Broken(how))
    monkeypatch.setattr(extend, "reproduce", lambda *a, **k: reproduce(*a, **k, session=here))
    runpy.run_path(str(script))


def test_a_region_that_does_not_compile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = saved("compiling")
    assert 'the compiler says """no"""\\' in (
        ast.get_docstring(ast.parse(script.read_text())) or ""
    )
    with pytest.raises(RuntimeError, match="the compiler says"):
        run(script, monkeypatch, "compiling")
    monkeypatch.undo()
    run(script, monkeypatch, None)
    assert "compiles, and returns what its operations return" in capsys.readouterr().out


def test_a_region_that_returns_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    script = saved("running")
    with pytest.raises(PluginError, match="result 0 has shape"):
        run(script, monkeypatch, "running")
    monkeypatch.undo()
    with pytest.raises(PluginError, match="another value"):
        run(script, monkeypatch, "computing")


def test_an_executor_that_is_not_there() -> None:
    with pytest.raises(TjError, match="no executor 'fast' that fuses"):
        extend.reproduce("fast", trace="", session=session(LoopPlugin()))
