"""Graph breaks, and tj below ``torch.compile``: ``dynamo_hook`` and backend ``tj``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch import nn

# Dynamo reads .grad of what it looks at, and PyTorch warns of that.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

X = torch.arange(6.0).reshape(2, 3)


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y.sin() + 1


def branches(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def prints(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    print("in between", y.shape)
    return y * 3


class Breaking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        if h.sum() > 1e9:
            return h
        return self.b(h.relu())


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def line_of(function: Any, text: str) -> str:
    """``file:line`` of the line of ``function`` that contains ``text``."""
    import inspect

    lines, first = inspect.getsourcelines(function)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"{__file__}:{first + number}"


# --------------------------------------------------------------------------- falling back


def test_a_graph_break_is_told_once_with_reason_and_line() -> None:
    g = tj.jit(branches)
    with pytest.warns(tj.TjWarning) as caught:
        same(g(X), X + 1)
        same(g(-X - 1), -X - 2)
        same(g(X[:1]), X[:1] + 1)
    messages = [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]
    assert len(messages) == 1
    assert "branches" in messages[0]
    assert "Data-dependent branching" in messages[0]
    assert line_of(branches, "if x.sum()") in messages[0]


def test_the_warning_points_at_the_callers_line() -> None:
    g = tj.jit(breaks)
    with pytest.warns(tj.TjWarning) as caught:
        g(X)
    assert caught[0].filename == __file__


def test_explain_lists_fallbacks() -> None:
    g = tj.jit(breaks)
    with pytest.warns(tj.TjWarning):
        g(X)
    explanation = tj.explain(g)
    assert len(explanation.fallbacks) == 1
    assert "without tj: graph break" in str(explanation)
    assert explanation.fallbacks[0].source is not None
    assert explanation.fallbacks[0].source.line == int(
        line_of(breaks, "graph_break").split(":")[-1]
    )
    assert tj.stats(g).fallbacks == explanation.fallbacks


def test_the_parts_are_compiled_by_tj(capsys: pytest.CaptureFixture[str]) -> None:
    g = tj.jit(prints)
    with pytest.warns(tj.TjWarning, match="graph break"):
        for n in range(1, 4):
            same(g(X), X.exp() * 3)
            assert capsys.readouterr().out == "in between torch.Size([2, 3])\n"
            stats = tj.stats(g)
            assert (stats.misses, stats.entries) == (2, 2)
            assert stats.calls >= n
    names = [e.compilation.traces[0].calls[0].symbol.name for e in g.__tj__.entries]
    assert names == ["exp", "mul"]


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
def test_gradients_across_a_graph_break() -> None:
    module = Breaking()
    g = tj.jit(module)
    x = X.clone().requires_grad_()
    inputs = [x, *module.parameters()]
    for _ in range(2):
        got = torch.autograd.grad(g(x).square().sum(), inputs)
        same(got, torch.autograd.grad(module(x).square().sum(), inputs))
    assert isinstance(g, Breaking)


@pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning")
def test_side_effects_across_a_graph_break_happen_once() -> None:
    log: list[int] = []

    def f(x, log):
        log.append(1)
        torch._dynamo.graph_break()
        log.append(2)
        return x + len(log)

    g = tj.jit(f)
    for n in range(1, 4):
        same(g(X, log), X + 2 * n)
        assert log == [1, 2] * n


# --------------------------------------------------------------------------- chosen explicitly


def test_the_hook_as_frontend() -> None:
    g = tj.jit(branches, frontend="dynamo_hook")
    for x in (X, -X - 1, X):
        same(g(x), branches(x))
    assert tj.stats(g).fallbacks == ()
    assert tj.stats(g).entries >= 1
    assert tj.last_trace(g).calls
    module = Breaking()
    h = tj.jit(module, frontend="dynamo_hook")
    same(h(X), module(X))
    assert list(h.state_dict()) == list(module.state_dict())


def test_the_frontend_from_the_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.tj]\nfrontend = "dynamo_hook"\n')
    monkeypatch.setenv("TJ_CONFIG", str(tmp_path / "pyproject.toml"))
    g = tj.jit(branches, session=tj.Session())
    same(g(X), X + 1)  # no warning: nothing fell back


def test_an_unknown_frontend() -> None:
    with pytest.raises(tj.TjError, match=r"unknown frontend 'dynamoo'\. Did you mean 'dynamo'"):
        tj.jit(branches, frontend="dynamoo")


# --------------------------------------------------------------------------- torch.compile


def test_the_backend_is_discovered() -> None:
    assert "tj" in torch._dynamo.list_backends()


def test_torch_compile_with_the_backend() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    compiled = torch.compile(module, backend="tj")
    for _ in range(2):
        same(compiled(X), module(X))
        got = torch.autograd.grad(compiled(X).sum(), list(module.parameters()))
        same(got, torch.autograd.grad(module(X).sum(), list(module.parameters())))


def test_options_of_the_backend() -> None:
    from tj_core.extend import Stage, Transform

    seen = []

    def look(trace: Any, context: Any) -> Any:
        seen.append([call.symbol.name for call in trace.calls])
        return trace

    options = {"transforms": [Transform("look", look, Stage.ACQUIRED)], "check": 2}
    compiled = torch.compile(lambda x: x.sin() * 2, backend="tj", options=options)
    same(compiled(X), X.sin() * 2)
    assert seen == [["sin", "mul"]]


def test_graph_breaks_and_dynamic_sizes_under_torch_compile() -> None:
    compiled = torch.compile(breaks, backend="tj", dynamic=True)
    for n in (2, 3, 4):  # warnings are errors: tj has nothing to say where PyTorch was asked
        x = torch.randn(n, 3)
        same(compiled(x), breaks(x))


def test_modes_and_unknown_options_are_refused() -> None:
    with pytest.raises(Exception, match="no option 'chek'"):
        torch.compile(lambda x: x + 1, backend="tj", options={"chek": 2})(X)
    with pytest.raises(Exception, match="mode"):
        torch.compile(lambda x: x + 1, backend="tj", mode="max-autotune")(X)


def reads_without_gradients(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torch._dynamo.graph_break()
    with torch.no_grad():
        view = x.T
    return view, x * 2


def writes_to_data(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torch._dynamo.graph_break()
    data = x.data
    data.add_(1)
    return data, x * 2


@pytest.mark.parametrize("f", [reads_without_gradients, writes_to_data], ids=lambda f: f.__name__)
def test_views_read_as_attributes_after_a_graph_break_are_the_programs(f: Any) -> None:
    """Dynamo would read them again after the graph: with gradients on, and without the writes."""

    def seen(fn: Any) -> tuple[Any, ...]:
        x = X.clone().requires_grad_()
        view, _ = fn(x)
        return view.requires_grad, view.grad_fn, view._version, x._version, view.tolist()

    g = tj.jit(f, frontend="dynamo_hook")
    assert [seen(g), seen(g)] == [seen(f), seen(f)]


@pytest.mark.parametrize("value", [0.3, 1])
def test_calls_stay_whole_after_a_graph_break(value: float) -> None:
    """Dynamo would decompose ``addcdiv`` into three calls, which round differently."""

    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        torch._dynamo.graph_break()
        torch._foreach_lerp_([a], [b], 0.3)
        return torch.addcdiv(a, b, c, value=value), a.addcdiv_(b, c, value=value)

    g = tj.jit(f, frontend="dynamo_hook")
    args = [torch.rand(64, generator=torch.Generator().manual_seed(n)) + 0.5 for n in range(3)]
    mine, theirs = [t.clone() for t in args], [t.clone() for t in args]
    same(g(*mine), f(*theirs))
    same(mine, theirs)
    names = {c.symbol.name for e in g.__tj__.entries for c in e.compilation.traces[0].calls}
    assert {"addcdiv", "Tensor.addcdiv_"} <= names


class Broken(torch.nn.Module):
    """A module whose ``forward`` is a fragment, which siblings share."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return self.up(x).relu() + x


HOOKS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "forward": lambda m: m.register_forward_hook(lambda module, args, out: out * 2),
    "before": lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "backward": lambda m: m.register_full_backward_hook(
        lambda module, given, got: tuple(g * 2 for g in given)
    ),
    "before backward": lambda m: m.register_full_backward_pre_hook(
        lambda module, got: tuple(g * 3 for g in got)
    ),
}


@pytest.mark.parametrize("later", [False, True], ids=["from the first call on", "later"])
@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_one_of_several_modules(name: str, later: bool, lenient: Any) -> None:
    """By Dynamo's defaults, the fragment of a module without hooks runs for one with hooks."""
    results = []
    for jit in (lambda m: m, tj.jit):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = torch.nn.Sequential(Broken(), Broken(), Broken())
        program, x, found = jit(model), torch.ones(2, 4, requires_grad=True), list[Any]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(2 if later else 1):
                if found or not later:
                    HOOKS[name](model[1].up)
                out = program(x)
                found += [out, *torch.autograd.grad(out.square().sum(), [x, *model.parameters()])]
        results.append(found)
    torch.testing.assert_close(results[1], results[0])
