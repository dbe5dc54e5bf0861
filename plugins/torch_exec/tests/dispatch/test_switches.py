"""Switches by which programs run in eager: each beside the same program under torch.compile."""

from __future__ import annotations

import gc
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch

Compile = Callable[..., Any]

WAYS: dict[str, Compile] = {
    "jit": lambda f, **options: tj.jit(f, **options),
    "compile": lambda f, **options: torch.compile(f, backend="eager", **options),
}


@pytest.fixture(params=WAYS)
def compiled(request: pytest.FixtureRequest) -> Iterator[Compile]:
    """`tj.jit`, and ``torch.compile``: tests hold for both."""
    torch._dynamo.reset()
    yield WAYS[request.param]
    torch._dynamo.reset()


def f(x: Any) -> Any:
    """Add 1 where the program is compiled, and 2 in eager."""
    return x + 1 if torch.compiler.is_compiling() else x + 2


class Module(torch.nn.Module):
    """A module around `f`."""

    def forward(self, x: Any) -> Any:
        return f(x)


def broken(x: Any) -> Any:
    """A program with a graph break."""
    torch._dynamo.graph_break()
    return f(x)


def way(run: Callable[[Any], Any], dtype: torch.dtype = torch.float32, size: int = 3) -> str:
    """The way in which ``run`` ran on a tensor of ones."""
    value = run(torch.ones(size, dtype=dtype))[0].item()
    return {2: "compiled", 3: "eager"}[value]


def stance(name: str, **options: Any) -> Any:
    """PyTorch's context manager for a stance."""
    return torch.compiler.set_stance(name, **options)


# ------------------------------------------------------------------------------- stances


@pytest.mark.parametrize("program", [f, Module()])
def test_force_eager(compiled: Compile, program: Any) -> None:
    run = compiled(program)
    with stance("force_eager"):
        assert way(run) == "eager"
    assert way(run) == "compiled"
    with stance("force_eager"):
        assert way(run) == "eager", "a compiled program is left alone, too"
    assert way(run) == "compiled"


def test_force_eager_until_it_is_set_back(compiled: Compile) -> None:
    run = compiled(f)
    assert way(run) == "compiled"
    torch.compiler.set_stance("force_eager")
    try:
        assert way(run) == "eager"
    finally:
        torch.compiler.set_stance("default")
    assert way(run) == "compiled"
    assert way(run, torch.float64) == "compiled"


@pytest.mark.filterwarnings("ignore:tj")
def test_force_eager_after_a_graph_break(compiled: Compile) -> None:
    run = compiled(broken)
    assert way(run) == "compiled"
    with stance("force_eager"):
        assert way(run) == "eager"


def test_eager_on_recompile(compiled: Compile) -> None:
    run = compiled(f)
    with stance("eager_on_recompile"):
        assert way(run) == "eager", "nothing is compiled yet"
    assert way(run) == "compiled"
    with stance("eager_on_recompile"):
        assert way(run) == "compiled"
        assert way(run, torch.float64) == "eager"
        assert way(run, size=4) == "eager"
        assert way(run) == "compiled"
    assert way(run, torch.float64) == "compiled"


def test_fail_on_recompile(compiled: Compile) -> None:
    run = compiled(f)
    with stance("fail_on_recompile"), pytest.raises(RuntimeError, match="Detected recompile"):
        run(torch.ones(3))
    assert way(run) == "compiled"
    with stance("fail_on_recompile"):
        assert way(run) == "compiled"
        with pytest.raises(RuntimeError, match="dtype mismatch"):
            run(torch.ones(3, dtype=torch.float64))
    assert way(run, torch.float64) == "compiled"


@pytest.mark.filterwarnings("ignore:tj")
def test_fail_on_recompile_after_a_graph_break(compiled: Compile) -> None:
    run = compiled(broken)
    assert way(run) == "compiled"
    with stance("fail_on_recompile"), pytest.raises(RuntimeError, match="Detected recompile"):
        run(torch.ones(3, dtype=torch.float64))


def test_fail_on_recompile_is_an_error_of_tj() -> None:
    with stance("fail_on_recompile"), pytest.raises(tj.TjError, match="'default'") as caught:
        tj.jit(f)(torch.ones(3))
    assert caught.value.__cause__ is None


_lines = itertools.count(100_000)
"""Lines of programs' copies: PyTorch remembers by file and line which ones have run."""


@pytest.mark.parametrize(
    ("name", "first"), [("eager_then_compile", "eager"), ("aot_eager_then_compile", "compiled")]
)
def test_the_first_call_by_another_backend(compiled: Compile, name: str, first: str) -> None:
    code = f.__code__.replace(co_firstlineno=next(_lines))
    run = compiled(types.FunctionType(code, globals()))
    with stance(name):
        assert [way(run, size=n) for n in (3, 4, 5)] == [first, "compiled", "compiled"]


def test_a_forced_backend(compiled: Compile) -> None:
    def zeros(graph: Any, examples: Any) -> Callable[..., Any]:
        return lambda *args: [torch.zeros(3) + 2]

    run = compiled(lambda x: f(x) * 5)
    assert run(torch.ones(3))[0].item() == 10
    with stance("default", force_backend=zeros):
        assert run(torch.ones(3))[0].item() == 2
    assert run(torch.ones(3))[0].item() == 10


def test_entries_answer_under_the_usual_stances_without_a_miss() -> None:
    run = tj.jit(f)
    for name in ("default", "eager_on_recompile", "fail_on_recompile", "default"):
        with stance(name):
            run(torch.ones(3)), run(torch.ones(3))
    with stance("force_eager"):
        run(torch.ones(3))
    stats = tj.stats(run)
    assert (stats.entries, stats.misses, stats.hits) == (1, 1, 7)
    assert not stats.fallbacks


def test_graphs_have_switches_too() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    run = tj.jit(graph, frontend="fx")
    x = torch.ones(3)
    run(x)
    ran: list[str] = []
    for name in ("force_eager", "eager_on_recompile", "fail_on_recompile"):
        with stance(name):
            before = tj.stats(run).hits
            run(x)
            ran.append(f"{name}: {tj.stats(run).hits - before}")
            if name != "fail_on_recompile":
                assert torch.equal(run(x.double()), x.double() + 1)
    assert ran == ["force_eager: 0", "eager_on_recompile: 1", "fail_on_recompile: 1"]
    with stance("fail_on_recompile"), pytest.raises(RuntimeError, match="Detected recompile"):
        run(x.double())
    assert tj.stats(run).entries == 1


# ------------------------------------------------------------------------------- other switches


def test_config_disable(compiled: Compile) -> None:
    run = compiled(f)
    assert way(run) == "compiled"
    with torch._dynamo.config.patch(disable=True):
        assert way(run) == "compiled", "what is compiled already is used"
        assert way(run, torch.float64) == "eager"


def test_config_disable_is_over_when_it_is_unset() -> None:
    run = tj.jit(f)  # Dynamo, which marks the code, never compiles it again
    with torch._dynamo.config.patch(disable=True):
        assert way(run) == "eager"
    assert way(run) == "compiled"


def test_dynamo_disable(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    before = compiled(f)
    assert way(before) == "compiled"
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    run, module = compiled(lambda x: f(x)), compiled(Module())
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")
    assert [way(before), way(run), way(module)] == ["compiled", "eager", "eager"]


def test_dynamo_disable_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    run = tj.jit(f)
    run(torch.ones(3))
    with pytest.raises(tj.TjError, match="has no trace: not compiled: TORCHDYNAMO_DISABLE was set"):
        tj.last_trace(run)


def test_disabled_callables(compiled: Compile) -> None:
    run, module = compiled(f), compiled(Module())
    assert way(torch.compiler.disable(run)) == "eager"
    assert way(torch.compiler.disable(module)) == "eager"
    assert [way(run), way(module)] == ["compiled", "compiled"]
    assert way(torch.compiler.disable(lambda x: run(x))) == "compiled", "as PyTorch says it"


def test_a_disabled_function_stays_so() -> None:
    run = tj.jit(torch.compiler.disable(f))
    assert way(run) == "eager"
    assert tj.stats(run).entries == 0


@pytest.mark.parametrize("backend", [False, True])
def test_tjs_own_switch(monkeypatch: pytest.MonkeyPatch, backend: bool) -> None:
    torch._dynamo.reset()
    monkeypatch.setenv("TJ_ENABLE", "0")
    options: dict[str, Any] = {"plugins": ["torch"]}
    if backend:
        run = torch.compile(lambda x: x + 1, backend="tj", options=options)
        assert torch.equal(run(torch.ones(3)), torch.ones(3) + 1)
        return
    run = tj.jit(f, **options)
    assert way(run) == "eager"
    assert way(tj.jit(Module(), **options)) == "eager"
    with pytest.raises(tj.TjError, match=r"not compiled: enable is false \(env TJ_ENABLE\)"):
        tj.explain(run)
    assert way(tj.jit(f, enable=True, **options)) == "compiled", "a call is stronger"


def test_torch_compile_disable_before_dynamo_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tj.jit(f)
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    assert way(run) == "compiled", "Dynamo has read it before"
    monkeypatch.delitem(sys.modules, "torch._dynamo.config")
    assert way(run, torch.float64) == "eager"


def test_a_switched_program_is_freed() -> None:
    run = tj.jit(lambda x: x + 1)
    with stance("force_eager"):
        run(torch.ones(3))
    run(torch.ones(3))
    seen = weakref.ref(run)
    del run
    gc.collect()
    assert seen() is None
