"""Higher-order operations: what they compute is what eager does, and their regions are programs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.oracle.compare import assert_captured, assert_equal, gradients, seeded
from tj_core.extend import (
    Claim,
    Executor,
    Replacement,
    RuleTable,
    Session,
    Stage,
    Transform,
    hookimpl,
)
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.sampled(16)

hop = torch.ops.higher_order

X = torch.linspace(-1, 1, 12).reshape(4, 3)
W = torch.linspace(0, 1, 9).reshape(3, 3)
BIAS = torch.linspace(0, 1, 4)


def cond(x, w):
    return torch.cond(x.sum() > -9, lambda a: (a @ w).sin(), lambda a: a.cos(), (x,)) * 2


def cond_other(x, w):
    return torch.cond(x.sum() > 9, lambda a: (a @ w).sin(), lambda a: a.cos(), (x,)) * 2


def cond_in_cond(x, w):
    def outer(a):
        return torch.cond(a.sum() > 9, lambda b: b * 2, lambda b: b @ w, (a,)) + 1

    return torch.cond(x.sum() > -9, outer, lambda a: a.clone(), (x,))


def looped(x, w):
    def step(i, a):
        return i + 1, (a @ w).tanh()

    return while_loop(lambda i, a: i < 3, step, (torch.tensor(0), x))


def never_looped(x, w):
    return while_loop(lambda i, a: i < 0, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))


def scanned(x, w):
    return scan(lambda c, row: (c + row @ w, c * row), torch.zeros(3), x, dim=0)


def summed_up(x, w):
    return associative_scan(lambda a, b: a + b, x @ w, 0, combine_mode="generic")


def mapped(x, w):
    return map_(lambda row, m: (row @ m).sin(), x, w)


def hinted(x, w):
    return hints_wrapper(lambda a: a.sin() @ w, (x,), {}, hints={"speed": 1})


def wrapped(x, w):
    return hop.wrap(lambda a: (a @ w, a.sin()), x)[0] + 1


def in_autocast(x, w):
    return hop.wrap_with_autocast("cpu", torch.bfloat16, True, None, lambda a, b: a @ b, x, w) + 1


def without_gradients(x, w):
    return x + hop.wrap_with_set_grad_enabled(False, lambda a, b: a @ b, x, w)


def strict(x, w):
    return hop.strict_mode(lambda a: a.sin() @ w, (x,))


@torch.compiler.nested_compile_region
def region(x, w):
    return (x @ w).sin()


def nested_regions(x, w):
    return region(region(x, w) + 1, w)


def through_grad(x, w):
    def loss(a):
        return (a @ w).sin().sum()

    return torch.func.grad(loss)(x) + 1


def through_vmap(x, w):
    return torch.func.vmap(lambda row: (row @ w).tanh())(x).sum(0)


def through_jvp(x, w):
    return torch.func.jvp(lambda a: (a @ w).sin(), (x,), (x.cos(),))


def through_hessian(x, w):
    return torch.func.hessian(lambda row: (row @ w).sin().sum())(x[0]) @ w


def per_sample_gradients(x, w):
    def loss(m, row):
        return (row @ m).tanh().sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)


def random_per_sample(x, w):
    return torch.func.vmap(lambda row: F.dropout(row) @ w, randomness="different")(x)


def cond_in_vmap(x, w):
    return torch.func.vmap(lambda row: row * 2, in_dims=0)(cond(x, w))


@torch.compiler.allow_in_graph
def allowed(x):
    return x.sin() * 2


@torch._dynamo.nonstrict_trace
def nonstrict(x):
    return x.sin() * 3


def recorded_functions(x, w):
    return allowed(x) @ w + nonstrict(x)


def formatted(x, w):
    hop.print("{} rows", x.shape[0])
    return x @ w


DIFFERENTIABLE = [
    cond, cond_other, cond_in_cond, looped, scanned, summed_up, mapped, hinted, wrapped,
    in_autocast, without_gradients, strict, nested_regions, through_grad, through_vmap,
    per_sample_gradients, random_per_sample, cond_in_vmap, recorded_functions,
]  # fmt: skip
if "args" in inspect.signature(type(hop.print).__call__).parameters:
    DIFFERENTIABLE.append(formatted)  # up to PyTorch 2.10 it takes keyword arguments alone
OTHERS = [never_looped, through_jvp, through_hessian]


def calls_through(f: Any, name: str) -> list[Any]:
    return [c for c in tj.last_traces(f)[0].walk() if c.symbol.qualname == name]


@pytest.mark.parametrize("f", DIFFERENTIABLE, ids=lambda f: f.__name__)
def test_values_and_gradients(f: Callable[..., Any], capsys: Any) -> None:
    assert_captured(f, X, W, needs_grad=True)


@pytest.mark.parametrize("f", [*DIFFERENTIABLE, *OTHERS], ids=lambda f: f.__name__)
@pytest.mark.parametrize("ambient", [torch.enable_grad, torch.no_grad])
def test_values_without_gradients(f: Callable[..., Any], ambient: Any, capsys: Any) -> None:
    with ambient():
        jitted = assert_captured(f, X, W, needs_grad=False)
    session = Session(plugins=["torch"])
    for trace in tj.last_traces(jitted):
        again = tj.Trace.parse(str(trace), language=session.language, constants=trace.constants())
        assert again == trace


@pytest.mark.parametrize(
    "f", [cond, looped, scanned, mapped, nested_regions, through_vmap], ids=lambda f: f.__name__
)
def test_sizes_that_change(f: Callable[..., Any]) -> None:
    """The second size is right, whatever is then compiled for it."""
    jitted = tj.jit(f)
    for rows in (4, 5, 7):
        x = torch.linspace(-1, 1, 3 * rows).reshape(rows, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = f(x, W)
        assert_equal(jitted(x, W), expected)
    assert tj.stats(jitted).fallbacks == ()


@torch.no_grad()
def test_sizes_that_change_beside_writes() -> None:
    """A write that is moved gives the operation an argument with other strides."""

    def writing(x, n):
        rows = int(n)
        head, tail = x.split([rows, len(x) - rows])
        tail.mul_(2)
        head.masked_scatter_((head[:, 1] < 99)[:, None], torch.cat([tail, head * 2]))
        return scan(lambda s, row: (s + row, s * row), tail.sum(0) * 0 + 1, tail)

    jitted = tj.jit(writing, dynamic=True)
    for size, rows in ((5, 3), (2, 1), (7, 3)):
        mine, theirs = (torch.linspace(-1, 1, 3 * size).reshape(size, 3) for _ in range(2))
        assert_equal(jitted(mine, torch.tensor(rows)), writing(theirs, torch.tensor(rows)))
        assert_equal(mine, theirs)
    assert tj.stats(jitted).fallbacks == ()


def test_a_size_of_data_that_has_two_names() -> None:
    """Dynamo gives a slice a size of its own, which later calls show to be another's."""

    def sliced(x):
        n = torch.count_nonzero(x[:, 1] > 0).item()
        rows = x[:n] * x[:n].sum()
        kept = checkpoint(lambda q: q[q[:, 0] > 0].sin() * 2, rows, use_reentrant=False)
        other = x.repeat(n, 1)
        return kept, other.masked_fill((torch.arange(len(x) * n) % 2 == 0)[:, None], 2.0)

    jitted = tj.jit(sliced, dynamic=True)
    for size in (5, 2, 1):
        for grad in (False, True):
            x = torch.linspace(-1, 2, 3 * size).reshape(size, 3).requires_grad_(grad)
            assert_equal(jitted(x), sliced(x))
    assert tj.stats(jitted).fallbacks == ()


def test_the_graph_of_a_shared_region_is_one_program() -> None:
    jitted = assert_captured(nested_regions, X, W, needs_grad=False)
    first, second = calls_through(jitted, "tj.invoke")
    assert first.subprograms[0].program is second.subprograms[0].program


def test_a_printed_program_with_regions_runs() -> None:
    jitted = tj.jit(cond)
    expected = jitted(X, W)
    scope: dict[str, Any] = {}
    exec(str(tj.last_trace(jitted)), scope)
    (got,) = scope["computation"](X, W)
    assert_equal(got, expected)


def test_regions_show_the_users_lines() -> None:
    jitted = tj.jit(cond)
    jitted(X, W)
    (call,) = calls_through(jitted, "torch.ops.higher_order.cond")
    true_fn, false_fn = call.subprograms
    assert [r.name for r in call.subprograms] == ["true_fn", "false_fn"]
    for inner in (*true_fn.program.calls, *false_fn.program.calls):
        assert inner.source is not None
        assert inner.source.file == __file__
        assert "torch.cond" in inner.source.text
    assert "# test_operations.py:" in str(tj.last_trace(jitted)).split("def true_fn")[1]


def test_errors_inside_name_the_users_line() -> None:
    @tj.jit
    def picks(x, index):
        return torch.cond(
            x.sum() > -99,
            lambda a, i: a[i] + 1,
            lambda a, i: a[i] * 2,
            (x, index),
        )

    picks(X, torch.tensor([0, 1]))
    with pytest.raises(IndexError) as raised:
        picks(X, torch.tensor([0, 9]))
    notes = "\n".join(raised.value.__notes__)
    assert "lambda a, i: a[i] + 1" in notes
    assert "torch.ops.higher_order.cond(" in notes


def test_tags_on_values_inside() -> None:
    @tj.jit
    def tagged(x):
        return torch.cond(
            x.sum() > 0, lambda a: tj.tag(a.sin(), "SAVE") * 2, lambda a: a.cos(), (x,)
        )

    tagged(X)
    (call,) = calls_through(tagged, "torch.ops.higher_order.cond")
    sin = call.subprograms[0].program.calls[0]
    assert "SAVE" in sin.flat_outs[0].tags
    assert "{SAVE}" in str(tj.last_trace(tagged))


# --------------------------------------------------------------------------- effects


def effects(f: Callable[..., Any], name: str, *args: Any) -> Any:
    jitted = tj.jit(f)
    with torch.no_grad():
        jitted(*args)
    (call,) = calls_through(jitted, name)
    return jitted, call.effects


def test_a_pure_operation_nobody_uses_goes() -> None:
    def unused(x):
        torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))
        return x + 1

    jitted, found = effects(unused, "torch.ops.higher_order.cond", X)
    assert found.removable
    assert [c.symbol.name for c in tj.last_trace(jitted).calls] == ["add"]


WRITES = pytest.mark.skipif(
    torch.__version__ < (2, 11), reason="PyTorch 2.10 refuses branches that write"
)


def test_a_random_operation_stays() -> None:
    def unused(x):
        torch.cond(x.sum() > -9, lambda a: a + torch.rand(3), lambda a: a.cos(), (x,))
        return x + torch.rand(3)

    jitted, found = effects(unused, "torch.ops.higher_order.cond", X)
    assert found.ordered == ("random:cpu",)
    assert_equal(seeded(jitted, (X,), {}), seeded(unused, (X,), {}))


@WRITES
def test_an_operation_that_writes_stays() -> None:
    def writing(x):
        y = x.clone()
        torch.cond(x.sum() > -9, lambda a: a.mul_(2) + 1, lambda a: a + 1, (y,))
        return y

    jitted, found = effects(writing, "torch.ops.higher_order.cond", X)
    assert found.mutates == (1,)
    with torch.no_grad():
        assert_equal(jitted(X), X * 2)


@WRITES
def test_writes_to_captured_inputs_are_seen() -> None:
    def writing(x, buffer):
        def step(a):
            buffer.add_(1)
            return a + buffer

        return torch.cond(x.sum() > -9, step, lambda a: a * 1, (x,))

    jitted, found = effects(writing, "torch.ops.higher_order.cond", X, torch.zeros(3))
    (call,) = calls_through(jitted, "torch.ops.higher_order.cond")
    assert [call.flat_args[i].name for i in found.mutates] == ["buffer"]
    mine, theirs = torch.zeros(3), torch.zeros(3)
    with torch.no_grad():
        assert_equal(jitted(X, mine), X + 1)
    assert_equal(mine, theirs + 1)


# --------------------------------------------------------------------------- rewriting

swap: RuleTable[Any] = RuleTable("swap")


@swap.register("aten.sin.default")  # a level of `torch.func` is the operators that it runs
def _cos_operator(call: Any, edit: Any) -> Replacement:
    return Replacement((edit.call("aten.cos.default", *call.args, outputs=(call.outputs.name,)),))


@swap.register("torch.sin")
def _cos(call: Any, edit: Any) -> Replacement:
    return Replacement((edit.call("torch.cos", *call.args, outputs=(call.outputs.name,)),))


@swap.register("torch.Tensor.double")
def _half(call: Any, edit: Any) -> Replacement:
    return Replacement((edit.call("torch.Tensor.half", *call.args, outputs=(call.outputs.name,)),))


SWAP = Transform("swap", lambda trace, context: context.rewrite(trace, swap), after=Stage.ACQUIRED)


def with_sin(f: str) -> dict[str, Callable[..., Any]]:
    g = getattr(torch, f)
    shared = torch.compiler.nested_compile_region(lambda a: g(a) * 2)
    return {
        "cond": lambda x: torch.cond(x.sum() > -9, lambda a: g(a) * 2, lambda a: a * 1, (x,)),
        "while_loop": lambda x: while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, g(a)), (torch.tensor(0), x)
        ),
        "scan": lambda x: scan(lambda c, row: (c + g(row), c * row), torch.zeros(3), x, dim=0),
        "map": lambda x: map_(lambda row, m: g(row) * m, x, W[0]),
        "region": shared,
        "vmap": lambda x: torch.func.vmap(lambda row: g(row).sum())(x),
        "grad": lambda x: torch.func.grad(lambda a: g(a).sum())(x),
        "flex_attention": lambda x: flex_attention(
            x[None, None], x[None, None], x[None, None], score_mod=lambda s, b, h, i, j: g(s)
        ),
    }


# Not `torch.func.grad`: its level is the operators of the gradient, taken before any transform.
@pytest.mark.parametrize("name", sorted(with_sin("sin").keys() - {"grad"}))
def test_what_runs_is_the_rewritten_region(name: str) -> None:
    jitted = tj.jit(with_sin("sin")[name], transforms=[SWAP], check=2)
    got = jitted(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = with_sin("cos")[name](X)
    torch.testing.assert_close(got, expected)
    assert not calls_through(jitted, "torch.cos")
    names = {c.symbol.name for c in tj.last_trace(jitted).walk()}
    assert names & {"cos", "cos.default"}


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.cond(x.sum() > -9, lambda a: a * 2, lambda a: a * 1, (x.double(),)),
        lambda x: while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x.double())
        )[1],
        lambda x: region(x.double(), W.double()),
    ],
    ids=["cond", "while_loop", "region"],
)
def test_regions_follow_the_metadata_of_their_inputs(f: Callable[..., Any]) -> None:
    jitted = tj.jit(f, transforms=[SWAP], check=2)
    assert jitted(X).dtype is torch.half


def test_an_operation_that_no_longer_fits_together_says_so() -> None:
    @tj.jit(transforms=[SWAP])
    def f(x):
        return torch.cond(x.sum() > -9, lambda a: a.double(), lambda a: a.to(torch.double), (x,))

    with pytest.raises(tj.TjError, match=r"subprograms 'true_fn' and 'false_fn' of .*cond return"):
        f(X)


# --------------------------------------------------------------------------- executors


class Sine:
    """An executor that runs ``sin``, on plain tensors only, and counts."""

    tj_name = "sine"

    def __init__(self) -> None:
        self.count = 0

    def run(self, x: torch.Tensor) -> torch.Tensor:
        assert type(x) is torch.Tensor
        self.count += 1
        return torch.from_numpy(x.detach().numpy()).sin()

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("torch.sin", Claim(self.run))
        return (Executor("sine", claims),)


@pytest.mark.parametrize("name", ["cond", "while_loop", "scan", "map", "region"])
def test_executors_run_calls_inside_of_regions(name: str) -> None:
    sine = Sine()
    f = with_sin("sin")[name]
    jitted = tj.jit(f, plugins=[sine, "torch"], check=2)
    x = X.clone().requires_grad_()
    with torch.no_grad():
        got = jitted(x)
        assert sine.count
        torch.testing.assert_close(got, f(x))


@pytest.mark.parametrize("name", ["cond", "while_loop", "scan", "map", "region", "vmap", "grad"])
def test_executors_stay_out_of_what_autograd_or_vmap_sees(name: str) -> None:
    sine = Sine()
    f = with_sin("sin")[name]
    x = X.clone().requires_grad_()
    got = tj.jit(f, plugins=[sine, "torch"], check=2)(x)
    expected = f(x)
    torch.testing.assert_close(got, expected)
    assert sine.count == 0
    torch.testing.assert_close(gradients(got, [x]), gradients(expected, [x]))
