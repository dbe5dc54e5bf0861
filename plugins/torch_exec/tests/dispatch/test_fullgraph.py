"""Programs that are to be one graph: errors at graph breaks; and options of torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import CaptureError, ConfigError
from torch import nn

PLUGINS: dict[str, Any] = {"plugins": ["torch"]}


def prints(x: Any) -> Any:
    """A program with a graph break."""
    y = x + 1
    print("a graph break")
    return y * 2


def branches(x: Any) -> Any:
    """A program that reads data."""
    return x if x.sum() > 0 else -x


@torch.compiler.disable
def left(x: Any) -> Any:
    """A function that is not to be compiled."""
    return x + 1


def calls_left(x: Any) -> Any:
    """A program that calls a disabled function."""
    return left(x) * 2


def yields(x: Any) -> Iterator[Any]:
    """A generator."""
    yield x + 1


BREAKS = {
    prints: (
        "Dynamo does not know how to trace builtin operator `print`",
        'print("a graph break")',
    ),
    branches: ("Detected data-dependent branching", "return x if x.sum() > 0 else -x"),
    calls_left: ("wrapped with `torch.compiler.disable`", "return left(x) * 2"),
    yields: ("has no single call to compile", ""),
}


@pytest.fixture(autouse=True)
def _breaks_are_errors_in_strict_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the tests' own configuration."""
    monkeypatch.delenv("TJ_FULLGRAPH")
    monkeypatch.delenv("TJ_STRICT", raising=False)


@pytest.mark.parametrize("options", [{"fullgraph": True}, {"strict": True}])
@pytest.mark.parametrize("program", BREAKS)
def test_a_graph_break_is_an_error(program: Any, options: dict[str, Any], capsys: Any) -> None:
    reason, line = BREAKS[program]
    run = tj.jit(program, **PLUGINS, **options)
    for _ in range(2):
        with pytest.raises(CaptureError) as caught:
            run(torch.ones(2))
        assert reason in caught.value.message
        assert line == (caught.value.source.text if caught.value.source else "")
        assert "fullgraph" in caught.value.hint
    assert capsys.readouterr().out == "", "nothing of the program has run"
    with pytest.raises(tj.TjError):
        tj.last_trace(run)


def test_fullgraph_is_stronger_than_strict() -> None:
    run = tj.jit(prints, fullgraph=False, strict=True, **PLUGINS)
    with pytest.warns(tj.TjWarning, match="graph break"):
        assert run(torch.ones(2)).tolist() == [4, 4]
    run = tj.jit(prints, fullgraph=True, strict=False, **PLUGINS)
    with pytest.raises(CaptureError):
        run(torch.ones(2))


def test_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TJ_FULLGRAPH", "1")
    with pytest.raises(CaptureError):
        tj.jit(prints, **PLUGINS)(torch.ones(2))
    with pytest.warns(tj.TjWarning, match="graph break"):
        tj.jit(prints, fullgraph=False, **PLUGINS)(torch.ones(2))


def test_whole_programs_run() -> None:
    run = tj.jit(lambda x: x * 2 + 1, fullgraph=True, **PLUGINS)
    assert run(torch.ones(2)).tolist() == [3, 3]
    lazy = tj.jit(nn.Sequential(nn.LazyLinear(2), nn.ReLU()), fullgraph=True, **PLUGINS)
    assert lazy(torch.ones(1, 3)).shape == lazy(torch.ones(1, 3)).shape == (1, 2)
    assert tj.stats(lazy).entries == 1


def test_what_the_program_raises_is_its_own() -> None:
    def f(x: Any) -> Any:
        return x + torch.ones(7)

    with pytest.raises(RuntimeError, match="must match the size") as caught:
        tj.jit(f, fullgraph=True, **PLUGINS)(torch.ones(3))
    assert not isinstance(caught.value, tj.TjError)


def test_in_a_mode_graph_breaks_are_errors_too() -> None:
    run = tj.jit(prints, fullgraph=True, **PLUGINS)
    with torch.device("cpu"), pytest.raises(CaptureError, match="`print`"):
        run(torch.ones(2))
    whole = tj.jit(lambda x: x + torch.ones(2), fullgraph=True, **PLUGINS)
    with torch.device("cpu"):
        assert whole(torch.ones(2)).tolist() == [2, 2]


def test_below_the_hook_graph_breaks_are_errors_too() -> None:
    run = tj.jit(prints, fullgraph=True, frontend="dynamo_hook", **PLUGINS)
    with pytest.raises(CaptureError, match="`print`"):
        run(torch.ones(2))


def test_a_transform_of_torch_func_runs_it_as_torch_compile_would() -> None:
    run = tj.jit(lambda x: x * 2, fullgraph=True, **PLUGINS)
    with pytest.warns(tj.TjWarning, match="called under a torch.func transform"):
        assert torch.func.vmap(run)(torch.ones(2, 3)).shape == (2, 3)


# ------------------------------------------------------------------------------- torch.compile's


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "reduce-overhead"}, "pip install tj-cudagraph"),
        ({"mode": "max-autotune"}, "torch._inductor.config.max_autotune"),
        ({"mode": "fast"}, "modes are torch.compile's"),
        ({"backend": "inductor"}, r"executors=\['inductor', '...'\]"),
        ({"backend": "tj"}, "tj by itself"),
        ({"options": {"max_autotune": True}}, "options are keywords"),
        ({"disable": True}, "enable=False"),
        ({"model": prints}, "without a name"),
    ],
)
def test_options_of_torch_compile_name_their_equivalents(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        tj.jit(prints, **options)


def test_the_backend_takes_or_explains_options() -> None:
    torch._dynamo.reset()
    x = torch.ones(2)

    def f(x: Any) -> Any:
        return x + 1

    with pytest.raises(Exception, match="pip install tj-cudagraph"):
        torch.compile(f, backend="tj", mode="reduce-overhead")(x)
    for options in ({"mode": "default"}, {"options": {**PLUGINS, "check": 2}}):
        torch._dynamo.reset()
        assert torch.compile(f, backend="tj", **options)(x).tolist() == [2, 2]
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no option 'max_autotune'"):
        torch.compile(f, backend="tj", options={"max_autotune": True})(x)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"fullgraph": True}, r"own keyword: torch.compile\(.*fullgraph="),
        ({"dynamic": True}, "own keyword"),
        ({"autocast": torch.bfloat16}, "enter torch.autocast"),
        ({"frontend": "fx"}, "torch.compile captures"),
        ({"on_miss": "eager"}, "compiles in the call"),
    ],
)
def test_the_backend_refuses_what_has_no_effect_there(option: dict[str, Any], words: str) -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda x: x + 1, backend="tj", options={**PLUGINS, **option})
    with pytest.raises(Exception, match=words):
        run(torch.ones(2))
    torch._dynamo.reset()
