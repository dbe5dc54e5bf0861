"""Any Python program: calling conventions, results and side effects are eager's."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tj_conformance.oracle.compare import assert_equal, assert_jits
from torch import nn

X = torch.arange(6.0).reshape(2, 3)

equal, twice = assert_equal, assert_jits


# --------------------------------------------------------------------------- what can be jitted


def scaled(x: torch.Tensor, scale: float = 2.0, *, shift: float = 0.0) -> torch.Tensor:
    """Scales."""
    return x * scale + shift


def test_decorator_with_and_without_arguments() -> None:
    @tj.jit
    def bare(x):
        return x + 1

    @tj.jit()
    def empty(x):
        return x + 2

    @tj.jit(dynamic=False, check=2)
    def given(x):
        return x + 3

    for i, f in enumerate((bare, empty, given), start=1):
        equal(f(X), X + i)


def test_name_signature_and_documentation_are_kept() -> None:
    g = tj.jit(scaled)
    assert g.__name__ == "scaled"
    assert g.__qualname__ == scaled.__qualname__
    assert g.__doc__ == "Scales."
    assert g.__module__ == scaled.__module__
    assert g.__wrapped__ is scaled
    assert inspect.signature(g) == inspect.signature(scaled)


class Affine:
    """Has a method of each kind, and can be called."""

    gain = 3.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain

    def method(self, x: torch.Tensor, bias: float = 1.0) -> torch.Tensor:
        return x * self.gain + bias

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x - 1

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.gain


CALLABLES: dict[str, Callable[..., Any]] = {
    "function": scaled,
    "lambda": lambda x: x.sin(),
    "object": Affine(),
    "method": Affine().method,
    "static": Affine.static,
    "classmethod": Affine.of_class,
    "partial": functools.partial(scaled, scale=5.0),
    "partial of a method": functools.partial(Affine().method, bias=2.0),
    "builtin": torch.sin,
    "functional": F.gelu,
    "tensor method": torch.Tensor.relu,
    "wrapped": functools.wraps(scaled)(lambda *args, **kwargs: scaled(*args, **kwargs) + 1),
    "no_grad": torch.no_grad()(scaled),
    "module method": nn.Softplus().forward,
}


@pytest.mark.parametrize("name", CALLABLES)
def test_callables(name: str) -> None:
    twice(CALLABLES[name], X)


# --------------------------------------------------------------------------- inputs and outputs


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: Any = None


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


NESTED: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x + 1,
    "tuple": lambda x: (x + 1, x),
    "nested": lambda x: [x, (x * 2, {"a": [x - 1, None, "text", 3]})],
    "dict": lambda x: {"a": x + 1, 2: x, (1, 2): x * 3},
    "ordered": lambda x: collections.OrderedDict(b=x, a=x + 1),
    "defaultdict": lambda x: collections.defaultdict(list, a=[x + 1]),
    "namedtuple": lambda x: Point(x + 1, x),
    "dataclass": lambda x: Pair(x * 2, [x]),
    "set": lambda x: {1, 2, int(x.shape[0])},
    "deque": lambda x: collections.deque([x, x + 1], maxlen=3),
    "return type": lambda x: x.max(0),
    "none": lambda x: None,
    "number": lambda x: x.shape[0] * 2.5,
    "size": lambda x: x.shape,
    "dtype": lambda x: (x.dtype, x.device, x.ndim),
    "empty": lambda x: ((), [], {}),
    "same": lambda x: x,
    "constant": lambda x: torch.tensor([1.0, 2.0]),
    "range": lambda x: range(x.shape[1]),
}


@pytest.mark.parametrize("name", NESTED)
def test_outputs_of_any_structure(name: str) -> None:
    f = NESTED[name]
    g = tj.jit(f)
    for _ in range(2):
        got, expected = g(X), f(X)
        if dataclasses.is_dataclass(expected):  # no pytree of its own
            assert type(got) is type(expected)
            got, expected = got.__dict__, expected.__dict__
        equal(got, expected)
    assert (g(X) is X) is (name == "same")
    assert tj.stats(g).fallbacks == ()


INPUTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "list": (lambda v: v[0] + v[1][0], [X, [X]]),
    "dict": (lambda v: v["a"] * v["b"]["c"], {"a": X, "b": {"c": X}}),
    "dataclass": (lambda v: v.first + v.second[0], Pair(X, (X,))),
    "namedtuple": (lambda v: v.x - v.y, Point(X, X + 1)),
    "object": (lambda v: v(X) * v.gain, Affine()),
    "module": (lambda v: v(X), nn.Softsign()),
    "function": (lambda v: v(X), scaled),
    "jitted function": (lambda v: v(X), tj.jit(scaled)),
    "ordered": (lambda v: sum(v.values()), collections.OrderedDict(a=X, b=X)),
    "dtype": (lambda v: X.to(v), torch.float64),
    "slice": (lambda v: X[v], slice(0, 1)),
    "numbers": (lambda v: X * v[0] + v[1], (2, 3.5)),
    "parameter": (lambda v: v * 2, nn.Parameter(X)),
    "zip": (lambda v: [a + b for a, b in zip(*v, strict=True)], ([X, X], [X, X])),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_of_any_structure(name: str) -> None:
    f, value = INPUTS[name]
    twice(f, value)


def test_model_outputs() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs", reason="transformers' own type")

    def f(x, earlier):
        hidden = x + (earlier.last_hidden_state if earlier is not None else 1)
        return outputs.BaseModelOutput(last_hidden_state=hidden, hidden_states=(x,))

    g = tj.jit(f)
    first = g(X, None)
    assert isinstance(first, outputs.BaseModelOutput)
    assert list(first) == ["last_hidden_state", "hidden_states"]
    equal(g(X, first).last_hidden_state, X + X + 1)


def test_generators_inside_and_as_arguments() -> None:
    def rows(x) -> Iterator[torch.Tensor]:
        for i in range(x.shape[0]):
            yield x[i] * i

    def f(x):
        return sum(rows(x))

    twice(f, X)

    def total(parts):
        result = 0
        for part in parts:
            result = result + part
        return result

    g = tj.jit(total)
    with pytest.warns(tj.TjWarning, match="graph break"):  # a live generator is not a constant
        equal(g(row for row in X), X.sum(0))
    equal(g(row for row in X), X.sum(0))


def test_sizes_are_compared_by_value() -> None:
    """Elements of tuples are asked whether they are one first, which does not matter."""

    def f(x, y):
        same = (x.size(0), 300, "a" * 40) == (y.size(0), 300, "a" * 40)
        return x * 2 if same else x + y.sum()

    g = tj.jit(f)
    for n in (300, 400, 500):
        for m in (n, n + 1):
            equal(g(torch.ones(n), torch.ones(m)), f(torch.ones(n), torch.ones(m)))
    assert not tj.stats(g).fallbacks


def test_a_generator_function() -> None:
    def f(x):
        yield x + 1
        yield x + 2

    g = tj.jit(f)
    # Dynamo would run it to its end at once, also the part that the caller never asks for.
    with pytest.warns(tj.TjWarning, match="no single call to compile") as warned:
        equal(list(g(X)), list(f(X)))
    assert len(warned) == 1
    equal(next(g(X)), next(f(X)))  # said once


# --------------------------------------------------------------------------- side effects


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.n = 0
        self.log: list[Any] = []

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.log.append(x.shape)
        return x * self.n


TOTAL = 0


def count(x: torch.Tensor) -> torch.Tensor:
    global TOTAL
    TOTAL += 1
    return x + TOTAL


def test_attributes_and_lists_are_changed_once_per_call() -> None:
    counter = Counter()
    g = tj.jit(counter.step)
    for n in range(1, 5):
        equal(g(X), X * n)
        assert counter.n == n
        assert len(counter.log) == n


def test_globals_are_changed_once_per_call() -> None:
    g = tj.jit(count)
    before = TOTAL
    for n in range(1, 4):
        equal(g(X), X + before + n)
        assert before + n == TOTAL


def test_tensors_put_into_containers_of_the_caller() -> None:
    def f(x, log, table):
        y = x * 2
        log.append(y)
        table["last"] = y
        return y + 1

    g = tj.jit(f)
    log: list[torch.Tensor] = []
    table: dict[str, torch.Tensor] = {}
    for i in range(3):
        equal(g(X + i, log, table), (X + i) * 2 + 1)
        assert len(log) == i + 1
        assert log[-1] is table["last"]
        equal(log[-1], (X + i) * 2)


def test_nonlocal_variables() -> None:
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        return x + calls

    g = tj.jit(f)
    for n in range(1, 4):
        equal(g(X), X + n)
        assert calls == n


def test_exceptions_caught_inside() -> None:
    def f(x, table):
        try:
            return x * table["missing"]
        except KeyError:
            return x - 1

    twice(f, X, {})


def test_recursion() -> None:
    def f(x, depth):
        return x if depth == 0 else f(x + depth, depth - 1)

    twice(f, X, 4)


# --------------------------------------------------------------------------- jit and other jits


def test_jitting_what_is_jitted() -> None:
    first = tj.jit(scaled)
    second = tj.jit(first, check=2)
    equal(second(X), scaled(X))
    assert tj.stats(first).calls == 0
    assert second.__wrapped__ is scaled
    module = tj.jit(tj.jit(nn.Softplus()))
    equal(module(X), F.softplus(X))


def test_jit_inside_jit_is_one_program() -> None:
    inner = tj.jit(scaled)
    g = tj.jit(lambda x: inner(x) + 1)
    equal(g(X), scaled(X) + 1)
    assert tj.stats(inner).calls == 0
    assert [c.symbol.name for c in tj.last_trace(g).calls] == ["mul", "add", "add"]


def test_a_jitted_function_that_calls_itself() -> None:
    @tj.jit
    def f(x, depth):
        return x if depth == 0 else f(x * 2, depth - 1)

    equal(f(X, 3), X * 8)


def test_torch_compile_around_jit_and_inside() -> None:
    inner = tj.jit(scaled)
    module = tj.jit(nn.Linear(3, 3))

    def f(x):
        return module(inner(x))

    compiled = torch.compile(f, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), module(scaled(X)))
    assert tj.stats(inner).calls == 0

    around = tj.jit(torch.compile(scaled, backend="eager"))
    for _ in range(2):
        torch.testing.assert_close(around(X), scaled(X))


def test_disabled_functions_stay_python_without_a_warning() -> None:
    seen = []

    @torch.compiler.disable
    def spy(x):
        seen.append(type(x))
        return x + 1

    g = tj.jit(lambda x: spy(x * 2) * 3)
    equal(g(X), (X * 2 + 1) * 3)
    assert seen == [torch.Tensor]
    (fallback,) = tj.stats(g).fallbacks
    assert "torch.compiler.disable" in fallback.reason
    equal(tj.jit(spy)(X), X + 1)


def test_a_disabled_forward_is_no_reason_to_warn() -> None:
    class Left(torch.nn.Module):
        @torch.compiler.disable(reason="it is left alone")
        def forward(self, x):
            return x + 1

    equal(tj.jit(Left())(X), X + 1)


# --------------------------------------------------------------------------- statistics, memo


def test_statistics() -> None:
    g = tj.jit(scaled)
    assert tj.stats(g).calls == 0
    g(X)
    g(X)
    g(X, 3.0)
    stats = tj.stats(g)
    assert (stats.calls, stats.hits, stats.misses, stats.entries) == (3, 1, 2, 2)
    assert {"acquire", "expand", "codegen"} <= set(stats.seconds)
    assert stats.compile_seconds == sum(stats.seconds.values())


def layered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = F.gelu(x @ w) + x
    return x.softmax(-1)


def test_repeated_calls_hit_the_memo() -> None:
    g = tj.jit(layered, plugins=["..."])
    g(X, torch.randn(3, 3))
    stats = tj.stats(g)
    assert stats.memo_hits >= 9
    assert stats.memo_misses == 4


def test_memo_off_gives_equal_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.randn(3, 3)
    on, off = tj.jit(layered), tj.jit(layered, memo=False)
    monkeypatch.setenv("TJ_MEMO", "0")
    by_environment = tj.jit(layered, plugins=["torch"])
    for g in (on, off, by_environment):
        g(X, w)
    assert str(tj.last_trace(on)) == str(tj.last_trace(off)) == str(tj.last_trace(by_environment))
    assert tj.last_traces(on) == tj.last_traces(off) == tj.last_traces(by_environment)
    assert tj.stats(off).memo_hits == tj.stats(by_environment).memo_hits == 0
    numbered = re.compile(r"___\d+")  # Dynamo numbers the dictionaries it looks into
    texts = [[numbered.sub("", str(guard)) for guard in tj.guards(g)] for g in (on, off)]
    assert texts[0] == texts[1]


# --------------------------------------------------------------------------- copies


def test_functions_are_copied_and_pickled_by_reference() -> None:
    g = tj.jit(scaled)
    equal(copy.deepcopy(g)(X), scaled(X))
    equal(copy.copy(g)(X), scaled(X))
    assert pickle.loads(pickle.dumps(jitted_here)) is jitted_here


@tj.jit
def jitted_here(x: torch.Tensor) -> torch.Tensor:
    return x + 1


# --------------------------------------------------------------------------- made-up programs

UNARY = (torch.sin, torch.relu, torch.neg, torch.exp, F.gelu, F.softplus, torch.sigmoid)
BINARY = (torch.add, torch.mul, torch.maximum, torch.sub, torch.atan2)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_any_expression_has_eagers_value_and_gradient(steps: list[tuple[int, int, int]]) -> None:
    def f(x, y):
        values = [x, y]
        for op, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(UNARY[op](a) if op < 7 else BINARY[op - 7](a, b))
        return values[-1]

    x, y = (torch.linspace(-1, 1, 4).add(k).requires_grad_() for k in (0.0, 0.5))
    g = tj.jit(f)
    equal(g(x, y), f(x, y))
    got = torch.autograd.grad(g(x, y).sum(), (x, y), allow_unused=True)
    expected = torch.autograd.grad(f(x, y).sum(), (x, y), allow_unused=True)
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            equal(mine, theirs)
