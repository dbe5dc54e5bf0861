"""Tensor subclasses: their own operations run, in Python and in executors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Claim, Executor, RuleTable, hookimpl
from tj_suites.subclasses.kinds import Labeled
from torch.utils import _pytree as pytree

pytestmark = [
    pytest.mark.sampled(10),
    pytest.mark.filterwarnings("ignore:tj. .*graph break:tj_core.TjWarning"),
]

BINARY = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "lt",
    "ge",
    "eq",
    "ne",
)
INTEGER = ("and_", "or_", "xor", "lshift", "rshift")
INPLACE = ("iadd", "isub", "imul", "itruediv", "ipow")
UNARY = ("neg", "pos", "abs", "invert")
ITEMS = ("getitem", "len", "iter", "bool", "float", "contains")


class Wrapper(torch.Tensor):
    """Subclass that wraps a tensor, and runs every operator on the inner tensor."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Wrapper, lambda w: w.inner, (args, kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


def plain(value: Any) -> Any:
    """Type, contents and attributes of ``value``, read without running methods of its class."""
    if isinstance(value, Wrapper):
        return type(value).__name__, plain(value.inner)
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return type(value).__name__, value.as_subclass(torch.Tensor).tolist()
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def wrapper_with(name: str, member: Any) -> type[Wrapper]:
    return type("Own", (Wrapper,), {name: member})


def subclass_with(name: str, member: Any) -> type[torch.Tensor]:
    return type("Own", (torch.Tensor,), {name: member})


def of_wrapper(cls: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: cls(x.clone())


def of_subclass(cls: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.clone().as_subclass(cls)


KINDS = {"wrapper": (wrapper_with, of_wrapper), "subclass": (subclass_with, of_subclass)}
X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def agrees(program: Callable[..., Any], make: Callable[..., Any], *values: torch.Tensor) -> Any:
    """Check that the jitted program equals eager; return the jitted program."""
    jitted = tj.jit(program)
    for value in values or (X, X + 1):
        assert plain(jitted(make(value))) == plain(program(make(value)))
    return jitted


# --------------------------------------------------------------------------- overridden members


def dunder(name: str) -> str:
    return f"__{name.rstrip('_')}__"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*BINARY, *INTEGER, *INPLACE])
def test_an_overridden_operator_is_the_one_that_runs(name: str, kind: str) -> None:
    members, values = KINDS[kind]
    apply = getattr(operator, name)
    made = values(members(dunder(name), lambda self, other: torch.Tensor.mul(self, 10)))
    x = X.to(torch.int64) if name in INTEGER else X
    agrees(lambda x: apply(x, 2), made, x)
    agrees(lambda x: apply(x * 1, 2), made, x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow", "matmul"])
def test_an_overridden_reflected_operator_is_the_one_that_runs(name: str, kind: str) -> None:
    members, values = KINDS[kind]
    apply = getattr(operator, name)
    made = values(members(f"__r{name}__", lambda self, other: torch.Tensor.mul(self, 10)))
    agrees(lambda x: apply(2, x), made)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", UNARY)
def test_an_overridden_unary_operator_is_the_one_that_runs(name: str, kind: str) -> None:
    members, values = KINDS[kind]
    apply = getattr(operator, name)
    made = values(members(dunder(name), lambda self: torch.Tensor.mul(self, 10)))
    agrees(lambda x: apply(x), made, X.to(torch.int64))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["sum", "relu", "view", "clone", "unsqueeze", "multiply", "exp_"])
def test_an_overridden_method_is_the_one_that_runs(name: str, kind: str) -> None:
    members, values = KINDS[kind]
    made = values(members(name, lambda self, *args: torch.Tensor.mul(self, 10)))
    call = operator.methodcaller(name)
    agrees(lambda x: call(x), made)
    agrees(lambda x: getattr(x * 1, name)(), made)
    if name in ("sum", "relu", "clone"):
        agrees(lambda x: getattr(torch, name)(x), made)


def test_an_overridden_method_of_a_wrapper_made_inside() -> None:
    cls = wrapper_with("sum", lambda self: self * 100)
    agrees(lambda x: cls(x * 2).sum(), lambda x: x)


def test_an_overridden_operator_of_a_subclass_made_inside() -> None:
    cls = subclass_with("__add__", lambda self, other: torch.Tensor.mul(self, 10))
    agrees(lambda x: x.as_subclass(cls) + 1, lambda x: x)


def test_torch_function_is_dispatched_to_once() -> None:
    class Times(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            out = super().__torch_function__(func, types, args, kwargs or {})
            return out * 10 if func in (torch.sin, torch.Tensor.sin) else out

    agrees(lambda x: x.sin(), of_subclass(Times))
    agrees(lambda x: torch.sin(x + 1) + 1, of_subclass(Times))


def test_a_subclass_without_meaning_of_its_own_is_compiled() -> None:
    cls = subclass_with("extra", lambda self: self * 3)
    g = agrees(lambda x: (x + 1).relu().extra(), of_subclass(cls))
    assert tj.stats(g).fallbacks == ()


# --------------------------------------------------------------------------- replaced members


@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("name", ["triple", "sum", "__add__", "__torch_dispatch__"])
def test_a_method_of_a_wrapper_that_is_replaced(name: str, made_inside: bool) -> None:
    cls = wrapper_with(name, lambda self, *args: torch.Tensor.mul(self, 10))
    if name == "__torch_dispatch__":
        cls = wrapper_with("triple", lambda self: self * 3)
    program = {"__add__": lambda x: x + 1, "sum": lambda x: x.sum()}.get(
        name, lambda x: x.triple().reshape(-1)
    )
    if name == "__torch_dispatch__":
        program = lambda x: x.triple()  # noqa: E731
    wrap = of_wrapper(cls)
    f = (lambda x: program(cls(x * 2))) if made_inside else program
    make = (lambda x: x) if made_inside else wrap
    jitted = tj.jit(f)
    assert plain(jitted(make(X))) == plain(f(make(X)))
    if name == "__torch_dispatch__":
        before = Wrapper.__dict__["__torch_dispatch__"].__func__

        def doubled(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = before(cls, func, types, args, kwargs)
            return cls(out.inner + 7) if func is torch.ops.aten.mul.Tensor else out

        cls.__torch_dispatch__ = classmethod(doubled)
    else:
        setattr(cls, name, lambda self, *args: torch.Tensor.mul(self, 20)[:1])
    assert plain(jitted(make(X))) == plain(f(make(X)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["__add__", "sum"])
def test_a_method_that_a_class_gets_later(name: str, kind: str) -> None:
    members, values = KINDS[kind]
    cls = members("extra", lambda self: self)
    f = {"__add__": lambda x: x + 1, "sum": lambda x: x.sum()}[name]
    jitted = agrees(f, values(cls))
    setattr(cls, name, lambda self, *args: torch.Tensor.mul(self, 10))
    assert plain(jitted(values(cls)(X))) == plain(f(values(cls)(X)))
    delattr(cls, name)
    assert plain(jitted(values(cls)(X))) == plain(f(values(cls)(X)))


# --------------------------------------------------------------------------- executors and rules


class Greedy:
    """Executor for plain tensors; it fails on any other value."""

    tj_name = "greedy"

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        def run(*args: Any) -> torch.Tensor:
            assert not any(isinstance(a, Wrapper) for a in args)
            return torch.mul(*args)

        claims: RuleTable[Claim] = RuleTable("claim")
        for name in ("torch.mul", "operator.mul", "aten.mul.Tensor"):
            claims.set(name, Claim(run))
        return (Executor("greedy", claims),)


def test_claims_for_plain_tensors_never_see_a_subclass(whole: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        return torch.mul(x, 2), x * 3, y * 4, x.mul(5)

    g = tj.jit(f, plugins=[Greedy(), whole, "torch"])
    assert plain(g(Wrapper(X), X)) == plain(f(Wrapper(X), X))
    records = tj.explain(g).claims
    # The operators on plain tensors are in the bodies of those on the subclass.
    assert [r.executor for r in records if r.depth == 0] == [None, None, "greedy", None]
    assert [r.executor for r in records if r.depth == 2].count("greedy") == 3
    reasons = [reason for r in records if r.depth == 0 for _, reason in r.declined]
    assert sum("tensor subclass" in reason for reason in reasons) == 3


def _of_an_argument(values, offsets):
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def _with_jagged_argument(fn):
    values = torch.arange(12.0).reshape(6, 2).requires_grad_()
    nested = _of_an_argument(values, torch.tensor([0, 2, 6]))
    out = fn(nested)
    out.values().sum().backward()
    return out.values().detach(), values.grad


def _with_jagged_made_inside(fn):
    values = torch.arange(12.0).reshape(6, 2).requires_grad_()
    out = fn(values, torch.tensor([0, 2, 6]))
    out.values().sum().backward()
    return out.values().detach(), values.grad


@pytest.mark.parametrize(
    ("f", "run"),
    [
        (lambda x: x.sin() * 2, _with_jagged_argument),
        (lambda v, o: _of_an_argument(v.sin(), o) * 2, _with_jagged_made_inside),
    ],
    ids=["given", "made inside"],
)
def test_graphs_with_nested_tensors_run_as_they_were_captured(f, run) -> None:
    """Also with ``fullgraph``, where no part may run uncompiled."""
    expected = run(f)
    for way in (tj.jit, lambda f: torch.compile(f, backend="tj", fullgraph=True)):
        torch.compiler.reset()
        with pytest.warns(tj.TjWarning, match="a nested tensor has sizes that differ"):
            found = run(way(f))
        assert all(map(torch.equal, found, expected))


def test_a_method_replaced_on_a_subclass_is_noticed_under_the_backend() -> None:
    class Plain(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    torch.compiler.reset()
    compiled = torch.compile(lambda x: x.sigmoid(), backend="tj")
    x = torch.ones(2).as_subclass(Plain)
    assert torch.equal(compiled(x), x.sigmoid())
    Plain.sigmoid = False
    with pytest.raises(TypeError, match="'bool' object is not callable"):
        compiled(x)


def test_operations_on_a_subclass_print_by_its_name_and_read_back() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    def f(x: Any) -> Any:
        return (x * 2).sin()

    jitted = tj.jit(f, plugins=["torch", "subclass"])
    jitted(TwoTensor(torch.ones(3), torch.ones(3)))
    trace = tj.last_trace(jitted, stage="ACQUIRED")
    text = trace.python(sources=False)
    assert "mul = TwoTensor.torch.mul(x, 2)" in text
    assert "_0 = TwoTensor.aten.mul.Tensor(x, 2)" in text
    assert "_0_2 = aten.mul.Tensor(" in text
    again = tj.Trace.parse(text, language=trace.language, constants=trace.constants())
    assert again.python(sources=False) == text
    assert [c.symbol for c in again.walk()] == [c.symbol for c in trace.walk()]


def test_a_region_is_captured_for_each_tensor_of_a_subclass() -> None:
    """Dynamo compares sizes, strides and data types of arguments, and no labels."""

    @torch.compiler.nested_compile_region
    def part(a: Any) -> Any:
        return a.sin() * (2 if a.label == "a" else 3)

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return part(x * 1), part(y * 1)

    x, y = Labeled(torch.ones(3), "a"), Labeled(torch.ones(3), "b")
    found, expected = tj.jit(f)(x, y), f(x, y)
    assert [out.label for out in found] == ["a", "b"]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.held, theirs.held)
