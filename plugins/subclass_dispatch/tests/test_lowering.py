"""Programs on tensor subclasses are dense programs, with subclasses at their boundary alone."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.case import evaluate
from tj_conformance.oracle.compare import assert_equal
from tj_conformance.oracle.versions import left_to_this_version
from tj_core.extend import Claim, Executor, RuleTable, Stage, hookimpl
from tj_suites.subclasses.programs import PROGRAMS
from torch.testing._internal.two_tensor import TwoTensor

pytestmark = [pytest.mark.sampled(10), pytest.mark.usefixtures("forgotten")]

UNKNOWN = "what torch[.a-zA-Z]*_ does is not known"

STAY = {
    "a_symbolic_size_in_the_context": r"what operator\.mul does is not known",
    "made_inside": "makes a tensor subclass of tensors that require gradients",
    "function_around_a_subclass": "makes a tensor subclass of tensors that require gradients",
    "made_with_a_tensor_as_context": r"what \S+\.Attached does is not known",
    "made_with_a_gradient_and_no_detach": r"\.Attached (does is not known|may write)",
    "under_autocast": "is given a tensor subclass under autocast",
    "one_part_is_copied_to_the_other": "getattr_1, which is written, and z hold the same memory",
    "an_argument_is_given_other_parts": UNKNOWN,
}
"""Programs that run on subclasses still, and what `tj.explain` says of it."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str) -> None:
    case, made = PROGRAMS[name], []

    def jit(f: Any, **options: Any) -> Any:
        made.append(tj.jit(f, **options))
        return made[0]

    verdict = evaluate(case, jit)
    assert not verdict.differences, str(verdict)
    if not left_to_this_version(verdict.fallbacks):
        assert bool(verdict.fallbacks) == bool(case.falls_back), str(verdict)
    if verdict.fallbacks or not tj.stats(made[0]).entries:
        return
    reasons = [decline.reason for _, decline in tj.explain(made[0]).declined]
    if name in STAY:
        assert any(re.search(STAY[name], reason) for reason in reasons), reasons
        return
    assert not reasons
    left = [c.symbol.qualname for c in tj.last_trace(made[0]).calls if c.on_subclass]
    assert set(left) <= {"tj.flatten", "tj.unflatten"}


def two(*shape: int, grad: bool = True) -> Any:
    torch.manual_seed(0)
    return TwoTensor(torch.randn(*shape), torch.randn(*shape)).requires_grad_(grad)


def chain(x: Any, y: Any) -> Any:
    return (x * y + 1).sin() * x


def operators(jitted: Any, name: str | None = None) -> list[str]:
    trace = tj.last_trace(jitted, name) if name else tj.last_trace(jitted)
    return [call.symbol.qualname for call in trace.calls]


def test_what_is_put_together_is_not_taken_apart_again() -> None:
    g = tj.jit(chain)
    x, y = two(3), two(3)
    g(x, y).sum().backward()
    assert operators(g).count("tj.flatten") == 2
    assert operators(g).count("tj.unflatten") == 1
    assert operators(g, "backward").count("tj.flatten") == 1  # the tangent
    assert operators(g, "backward").count("tj.unflatten") == 2  # the gradients


def test_an_executor_sees_dense_tensors_in_both_directions() -> None:
    seen: list[type] = []

    class Products:
        tj_name = "products"

        @hookimpl
        def tj_executors(self) -> tuple[Executor, ...]:
            def product(a: Any, b: Any) -> Any:
                seen.extend(map(type, (a, b)))
                return torch.ops.aten.mul.Tensor(a, b)

            claims: RuleTable[Claim] = RuleTable("claim")
            claims.set("aten.mul.Tensor", Claim(product))
            return (Executor("products", claims),)

    g = tj.jit(chain, plugins=[Products(), "..."])
    x, y = two(3), two(3)
    g(x, y).sum().backward()
    forward, a, b = len(seen), two(3), two(3)
    chain(a, b).sum().backward()
    assert forward >= 8
    assert set(seen) == {torch.Tensor}
    assert_equal((x.grad, y.grad), (a.grad, b.grad))


def test_a_tangent_of_another_class_is_pytorchs() -> None:
    """The backward was compiled for a TwoTensor; a plain tangent goes another way, and is right."""

    def gradient(f: Any, tangent: torch.Tensor) -> Any:
        x, y = two(3), two(3)
        f(x, y).backward(tangent)
        return x.grad, y.grad

    g = tj.jit(chain)
    for tangent in (two(3, grad=False), torch.ones(3), two(3, grad=False)):
        assert_equal(gradient(g, tangent), gradient(chain, tangent))


def value_and_sum(x: Any, y: Any) -> Any:
    z = x * 2
    return z * x, z.sum()


def chain_of_results(x: Any, y: Any) -> Any:
    z = x * y
    w = z.sin() * x
    return z, w, (w * z).sum()


def views_of_a_result(x: Any, y: Any) -> Any:
    z = (x * y).exp()
    return z.view(-1) * 3, z * y


@pytest.mark.parametrize("f", [chain, value_and_sum, chain_of_results, views_of_a_result])
def test_gradients_of_gradients_are_eagers(f: Any) -> None:
    """They run the program again, with inputs as they were, in each of its segments."""

    def second(f: Any) -> Any:
        x, y = two(3), two(3)
        results = f(x, y) if f(x, y).__class__ is tuple else (f(x, y),)
        total = sum(r.sum() for r in results)
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        first.sin().sum().backward()
        return first, x.grad, y.grad

    # Gradients of several results are added in another order.
    torch.testing.assert_close(second(tj.jit(f)), second(f))


def test_one_program_is_for_all_sizes() -> None:
    def f(x: Any, w: Any) -> Any:
        y = torch.cat([x, x * 2]).view(x.shape[0] * 2, -1)
        return (y @ w).relu() * y.size(0)

    def gradients(run: Any, rows: int) -> Any:
        x, w = two(rows, 5), two(5, 3)
        result = run(x, w)
        result.backward(TwoTensor(torch.ones(2 * rows, 3), torch.ones(2 * rows, 3)))
        return result.detach(), x.grad, w.grad

    g = tj.jit(f, dynamic=True)
    for rows in (4, 6, 9):
        assert_equal(gradients(g, rows), gradients(f, rows))
    assert tj.stats(g).misses == 1
    assert not tj.explain(g).declined
    for name in ("forward", "backward"):
        assert not any(call.on_subclass for call in tj.last_trace(g, name).calls)
        assert {"tj.flatten", "tj.unflatten"} <= set(operators(g, name))
    assert "again:" not in str(tj.explain(g))  # PyTorch's autograd was not asked


def test_operators_on_the_subclass_are_claimed_where_sizes_are_symbols() -> None:
    """In the backward, too."""

    def f(x: Any, y: Any) -> Any:
        return (x * y).sin()

    ran = []

    class Products:
        tj_name = "products"

        @hookimpl
        def tj_executors(self) -> tuple[Executor, ...]:
            def product(x: Any, y: Any) -> Any:
                ran.append((type(x), tuple(x.shape)))
                return TwoTensor(x.a * y.a, x.b * y.b)

            claims = RuleTable[Claim]("claim")
            claims.set("TwoTensor.aten.mul.Tensor", Claim(product))
            return (Executor("products", claims),)

    g = tj.jit(f, plugins=[Products(), "torch", "autograd", "subclass"], dynamic=True)
    for rows in (3, 5, 8):
        (x, y), (a, b) = ([two(rows, 4), two(rows, 4)] for _ in range(2))
        mine, theirs = g(x, y), f(a, b)
        tangent = TwoTensor(torch.ones(rows, 4), torch.ones(rows, 4))
        mine.backward(tangent), theirs.backward(tangent)
        assert_equal((mine.detach(), x.grad, y.grad), (theirs.detach(), a.grad, b.grad))
    assert tj.stats(g).misses == 1
    assert not tj.explain(g).declined
    assert ran.count((TwoTensor, (8, 4))) == 4  # the product, and three in the backward
    assert any(c.executor for c in tj.last_trace(g, "backward").calls if c.on_subclass)


def test_a_write_has_a_body_and_says_what_is_new() -> None:
    def f(x: Any) -> Any:
        return x.mul_(2) + 1

    g, x, y = tj.jit(f), two(3, grad=False), two(3, grad=False)
    assert_equal((g(x), x), (f(y), y))
    write, _ = tj.last_trace(g, stage="ACQUIRED").calls
    assert write.effects.mutates == (0,)
    ((place, new),) = write.body.updates
    assert place == 0
    assert new == write.body.outputs
    assert new.subclass == write.flat_outs[0].subclass


def test_another_context_is_another_program() -> None:
    from tj_suites.subclasses.kinds import Labeled

    g = tj.jit(lambda x: x * 2 if x.label == "a" else x * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for label, expected in (("a", 2.0), ("b", 3.0), ("a", 2.0)):
            assert g(Labeled(torch.ones(2), label)).held.tolist() == [expected] * 2
    assert (tj.stats(g).misses, tj.stats(g).hits) == (2, 1)


def test_programs_without_subclasses_skip_the_stage() -> None:
    g = tj.jit(lambda x: x.sin() * 2)
    g(torch.ones(3, requires_grad=True)).sum().backward()
    assert Stage.LOWERED not in {trace.stage for trace in tj.last_traces(g)}


def test_without_the_lowering_calls_are_whole(whole: Any) -> None:
    g = tj.jit(chain, plugins=["torch", "autograd", whole])
    x, y, a, b = two(3), two(3), two(3), two(3)
    g(x, y).sum().backward()
    chain(a, b).sum().backward()
    assert_equal((x.grad, y.grad), (a.grad, b.grad))
    assert operators(g) == ["torch.mul", "torch.add", "torch.sin", "torch.mul"]


def test_a_module_with_such_parameters_is_saved_and_copied() -> None:
    module = torch.nn.Linear(4, 4, bias=False)
    module.weight = torch.nn.Parameter(two(4, 4, grad=False))
    g = tj.jit(module)
    x = torch.randn(2, 4)
    expected = module(x).detach()
    assert_equal(g(x).detach(), expected)
    for other in (g, copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert_equal(other(x).detach(), expected)
        assert isinstance(other.weight, TwoTensor)
        assert tj.explain(other).fallbacks == ()
    assert list(g.state_dict()) == ["weight"]
    assert isinstance(g.state_dict()["weight"], TwoTensor)
    fresh = tj.jit(torch.nn.Linear(4, 4, bias=False))
    fresh.weight = torch.nn.Parameter(two(4, 4, grad=False))
    fresh.load_state_dict(g.state_dict())
    assert_equal(fresh(x).detach(), expected)


def casts_at_entry(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.nn.functional.linear(x, w).relu() @ w


def keeps_no_casts(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        return (x * 2) @ w @ w


@pytest.mark.parametrize("f", [casts_at_entry, keeps_no_casts])
def test_gradients_under_autocast_are_traced(f: Any) -> None:
    """Eager keeps one cast of a weight that is used twice: its gradient is a sum in bfloat16."""
    cache = pytest.importorskip("tj_autocast.probe")
    if cache.keeps_casts_without_gradients():
        pytest.skip("tj-autocast is unavailable: PyTorch 2.10's cache of casts")
    jitted = tj.jit(f, plugins=["torch", "autograd", "autocast", "subclass"])
    seen = []
    for g in (f, jitted):
        torch.manual_seed(0)
        x, w = (TwoTensor(torch.rand(4, 4), torch.rand(4, 4)).requires_grad_() for _ in range(2))
        out = g(x, w)
        out.sum().backward()
        seen.append([t for value in (out, x.grad, w.grad) for t in (value.a, value.b)])
    assert_equal(seen[1], seen[0])
    assert tj.explain(jitted).declined == ()
    assert not any(call.on_subclass for call in tj.last_trace(jitted, "backward").calls)
