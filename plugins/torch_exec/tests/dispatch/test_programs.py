"""The programs behind callables: with graph breaks, of ``torch.compile``, inside modules."""

from __future__ import annotations

import functools
import gc
import warnings
import weakref

import pytest
import tj_core as tj
import torch


def inner(x):
    torch._dynamo.graph_break()
    return x.cos()


def broken(x):
    y = x.sin()
    print(end="")
    return inner(y.exp()) + 1


LINE = inner.__code__.co_firstlineno
X = torch.ones(3)

KINDS = {"jit": tj.jit, "compile": lambda f: torch.compile(f, backend="tj")}


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        yield


def operations(program):
    return [call.symbol.name for call in program.traces[0].calls]


@pytest.mark.parametrize("kind", KINDS)
def test_fragments_say_which_graph_break_they_follow(kind):
    f = KINDS[kind](broken)
    f(X)
    found = tj.programs(f)
    assert [operations(p) for p in found] == [["sin"], ["exp"], ["cos"], ["add"]]
    assert {p.kind for p in found} == {"fragment"}
    assert [p.function for p in found] == ["broken", "broken", "inner", "broken"]
    first, second, third, fourth = found
    assert first.after is None
    assert second.after == first.ended
    assert (first.ended.source.line, third.after.source.line) == (
        broken.__code__.co_firstlineno + 2,
        LINE + 1,
    )
    assert "Failed to trace builtin operator" in first.ended.reason
    assert "Call to `torch._dynamo.graph_break()`" in third.after.reason
    assert fourth.ended is None
    assert all(p.guards for p in found)
    assert "x" in str(tj.guards(first))
    assert tj.explain(first).counts() == {"torch": 1}
    assert tj.last_trace(f) == tj.last_trace(fourth)
    assert [*map(str, tj.programs(functools.partial(f, X)))] == [*map(str, found)]


def test_a_callable_of_torch_compile_is_looked_at_like_a_jitted_one():
    f = torch.compile(lambda x: x.sin() + 1, backend="tj")
    assert tj.programs(f) == ()
    assert tj.stats(f).entries == 0
    with pytest.raises(tj.TjError, match="has no trace"):
        tj.last_trace(f)
    f(X)
    f(torch.ones(3, dtype=torch.float64))
    assert [operations(p) for p in tj.programs(f)] == [["sin", "add"]] * 2
    assert {p.kind for p in tj.programs(f)} == {"entry"}
    assert tj.last_trace(f).inputs[0].dtype.name == "float64"
    assert (tj.stats(f).misses, tj.stats(f).entries) == (2, 2)
    assert tj.explain(f).counts() == {"torch": 2}
    assert len(tj.guards(f)) > 3


def test_what_one_call_of_torch_compile_compiled_another_finds():
    def f(x):
        return x.sin()

    first, second = (torch.compile(f, backend="tj") for _ in range(2))
    first(X)
    second(X)
    assert operations(tj.programs(second)[0]) == ["sin"]
    other = torch.compile(f, backend="tj", options={"plugins": ["torch"]})
    assert tj.programs(other) == ()


def test_modules_that_are_compiled_in_place_share_programs():
    class Relu(torch.nn.Module):
        def forward(self, x):
            return x.relu()

    first, second, other = Relu(), Relu(), Relu()
    for module in (first, second):
        module.compile(backend="tj")
        module(X)
        assert [operations(p) for p in tj.programs(module)] == [["relu"]]
    other.compile(backend="tj", options={"plugins": ["torch"]})
    assert tj.programs(other) == ()


def test_another_backend_is_none_of_ours():
    with pytest.raises(tj.TjError, match="is not a jitted callable"):
        tj.programs(torch.compile(broken, backend="eager"))
    with pytest.raises(tj.TjError, match="is not a jitted callable"):
        tj.programs(torch.nn.Linear(2, 2))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.jitted = tj.jit(torch.nn.Linear(3, 3))
        self.compiled = torch.compile(Inner(), backend="tj")
        self.inside = Inner()
        self.inside.compile(backend="tj")
        self.function = tj.jit(torch.tanh)

    def forward(self, x):
        return self.method(self.function(self.compiled(self.inside(self.jitted(x)))))

    @tj.jit
    def method(self, x):
        return x.sigmoid()


class Inner(torch.nn.Module):
    def forward(self, x):
        return x.relu()


def test_jitted_parts_of_a_module_are_found():
    block = Block()
    with torch.no_grad():
        block(X)
    found = sorted(operations(p)[0] for p in tj.programs(block))
    assert found == ["nn.functional.linear", "relu", "sigmoid", "tanh"]


def test_a_jitted_module_speaks_of_itself_and_lists_those_inside():
    outer = tj.jit(torch.nn.Sequential(tj.jit(torch.nn.Linear(3, 3)), torch.nn.ReLU()))
    outer[0](X)
    outer(X)
    outer[0](torch.ones(2, 3))
    assert tj.stats(outer).entries == 1
    assert operations(tj.programs(outer)[1]) == ["nn.functional.linear", "nn.functional.relu"]
    assert tj.last_trace(outer) == tj.last_trace(tj.programs(outer)[1])
    assert len([p for p in tj.programs(outer) if not p.part]) == 3


def test_programs_of_torch_compile_end_with_their_code():
    compiled = torch.compile(lambda x: x.sin(), backend="tj")
    compiled(X)
    state = weakref.ref(tj.programs(compiled)[0].jitted)
    del compiled
    torch._dynamo.reset()  # it keeps compiled code for good
    gc.collect()
    assert state() is None


@pytest.mark.parametrize("made", [torch.sin, torch.nn.Linear(3, 3)])
def test_a_jitted_callable_shows_itself_in_notebooks(made):
    f = tj.jit(made)
    assert "0 calls" in f._repr_html_()
    f(X)
    shown = f._repr_html_()
    assert "1 calls, 0 hits, 1 entries" in shown
    assert "<summary>program 0</summary>" in shown
    assert "computation" in shown
