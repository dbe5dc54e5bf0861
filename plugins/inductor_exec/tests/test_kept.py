"""Compiled regions on disk: found by equal programs of equal sessions, and by no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch._inductor.config as inductor_config
from tj_core.extend import Executor, RuleTable
from tj_inductor.adapter import compiling
from tj_inductor.adapter.settings import settings

if TYPE_CHECKING:
    from pathlib import Path

PLUGINS = ("inductor", "autograd", "torch")
X = torch.linspace(-1, 1, 48).reshape(6, 8)


def program(x: torch.Tensor) -> torch.Tensor:
    return ((x.sin() + 1).exp() * x).sum(1)


@pytest.fixture(autouse=True)
def _folder(_not_disabled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path / "cache"))


def counts(
    f: Callable[..., torch.Tensor] = program,
    plugins: tuple[Any, ...] = PLUGINS,
    x: torch.Tensor = X,
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> tuple[int, int]:
    """The regions that a session of its own compiles for ``f``, and those that it finds."""
    here = tj.Session(plugins, overrides={"check": 2, "strict": True, "inductor": options or {}})
    g = tj.jit(f, session=here, **arguments)
    torch.testing.assert_close(g(x), f(x))
    assert tj.stats(g).region_hits == 0
    assert tj.explain(g).regions
    return tj.stats(g).region_misses, tj.stats(g).region_kept


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "regions").glob("*.json"))


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_next_session_compiles_nothing(
    dynamic: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert counts(dynamic=dynamic) == (1, 0)
    monkeypatch.setattr(compiling, "compiled", None)  # calling it would raise
    assert counts(dynamic=dynamic) == (0, 1)
    assert len(files(tmp_path)) == 1


def test_gradients_are_kept_too() -> None:
    def step(f: Any) -> torch.Tensor:
        x = X.clone().requires_grad_()
        f(x).sum().backward()
        assert x.grad is not None
        return x.grad

    found = []
    for _ in range(2):
        g = tj.jit(program, session=tj.Session(PLUGINS))
        torch.testing.assert_close(step(g), step(program))
        stats = tj.stats(g)
        found.append((stats.region_misses, stats.region_kept))
        assert any(name.endswith(": compile regions") for name in stats.seconds)
    assert found == [(2, 0), (0, 2)]


def test_sizes_that_were_not_compiled_for_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region's decisions on sizes are kept with it."""
    counts(dynamic=True)
    g = tj.jit(program, session=tj.Session(PLUGINS), dynamic=True)
    for rows in (6, 3, 17, 300, 2):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(g(x), program(x))
    assert (tj.stats(g).region_misses, tj.stats(g).region_kept) == (0, 1)


OTHERS: dict[str, dict[str, Any]] = {
    "another program": {"f": lambda x: ((x.cos() + 1).exp() * x).sum(1)},
    "another constant": {"f": lambda x: ((x.sin() + 2).exp() * x).sum(1)},
    "other sizes": {"x": torch.ones(3, 8)},
    "other strides": {"x": torch.ones(8, 6).t()},
    "another type": {"x": X.double()},
    "another option": {"options": {"emulate_precision": False}},
    "an option that changes nothing": {"options": {"minimum": 1}},
    "symbols": {"dynamic": True},
    "more plugins": {"plugins": ("inductor", "autograd", "conformance", "torch")},
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("other", OTHERS)
def test_what_is_not_equal_is_not_found(other: str) -> None:
    assert counts() == (1, 0)
    assert counts(**OTHERS[other]) == (1, 0)
    assert counts() == (0, 1)


def test_settings_count() -> None:
    assert counts() == (1, 0)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert counts() == (1, 0)
    finally:
        torch.set_num_threads(threads)
    with settings({"cpp.min_chunk_size": 77}):
        assert counts() == (1, 0)
    assert counts() == (0, 1)


def test_with_a_setting_that_no_text_says_nothing_is_kept(tmp_path: Path) -> None:
    with inductor_config.patch({"post_grad_custom_post_pass": lambda graph: None}):
        assert counts() == (1, 0)
    assert files(tmp_path) == []


class Inline:
    """A plugin that is an object of the program: its code is in no file that is known."""

    tj_name = "inline"


def test_what_depends_on_objects_of_the_program_is_not_kept(tmp_path: Path) -> None:
    plugins = ("inductor", "autograd", "torch", Inline())
    assert counts(plugins=plugins) == (1, 0)
    mine = Executor("mine", RuleTable("claim"))
    assert counts(executors=[mine, "..."]) == (1, 0)
    assert files(tmp_path) == []


def test_code_that_changed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts() == (1, 0)
    monkeypatch.setattr("tj_core.host.fingerprint._files", lambda code: "as it is now")
    assert counts() == (1, 0)


def test_nothing_is_kept_where_the_config_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TJ_CACHE_DIR", "none")
    assert counts() == counts() == (1, 0)
    assert not (tmp_path / "cache").exists()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("value", ["", "[]", '["no Python(", [null], [], []]', "[1, 2]"])
def test_what_cannot_be_used_is_compiled_with_a_warning(value: str, tmp_path: Path) -> None:
    counts()
    (path,) = files(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"value": value}))
    with pytest.warns(tj.TjWarning, match="cannot use what was kept") as caught:
        assert counts() == (1, 0)
    assert len(caught) == 1
    assert counts() == (0, 1), "it was replaced"


def test_what_does_something_else_is_found_in_its_first_run(tmp_path: Path) -> None:
    counts()
    (path,) = files(tmp_path)
    document = json.loads(path.read_text())
    source, *rest = json.loads(document["value"])
    changed = source.replace("return (", "return (torch.ones(7), ")
    assert changed != source
    path.write_text(json.dumps(document | {"value": json.dumps([changed, *rest])}))
    g = tj.jit(program, session=tj.Session(PLUGINS, overrides={"strict": False}))
    with pytest.warns(tj.TjWarning, match="operations run one by one"):
        torch.testing.assert_close(g(X), program(X))


SCRIPT = """
import sys, torch, tj_core as tj
def step(f, x):
    x = x.clone().requires_grad_()
    f(x).sum().backward()
    return x.grad
def program(x):
    return torch.softmax(((x @ x).sin() + 1).exp() * x, 1) * x
def another(x):
    return (x.cos() * x).tanh()
x = torch.linspace(-1, 1, 49).reshape(7, 7)
for f in (program, another)[: int(sys.argv[1])]:
    g = tj.jit(f, plugins=["inductor", "autograd", "torch"])
    torch.testing.assert_close(step(g, x), step(f, x))
    parts = ("compile_fx", "lowering", "scheduler", "ir", "select_algorithm", "decomposition")
    imported = [part for part in parts if f"torch._inductor.{part}" in sys.modules]
    asked = "torch.utils.cpp_extension" in sys.modules  # what flags the C++ compiler gets
    print(tj.stats(g).region_misses, tj.stats(g).region_kept, asked, *imported)
"""


def in_process(programs: int) -> list[str]:
    """Output of `SCRIPT` for that many programs, in a process of its own."""
    command = [sys.executable, "-c", SCRIPT, str(programs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_does_not_import_what_could() -> None:
    assert "TJ_CACHE_DIR" in os.environ
    (first,) = in_process(1)
    assert first.startswith("2 0 True compile_fx lowering")
    kept, compiled = in_process(2)
    assert kept == "0 2 False"
    assert compiled.startswith("2 0 True compile_fx lowering")
