"""Writes to tensor subclasses: programs that are dense, and the same as eager to whoever looks.

Values, gradients, types, strides, version counters, what is a view of what, and what shares memory.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.sampling import FULL
from tj_suites.subclasses.kinds import Labeled, Sideways
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.usefixtures("forgotten")

SESSION = tj.Session(["torch", "autograd", "subclass"])


def two(*shape: int) -> Any:
    return TwoTensor(torch.randn(*shape), torch.randn(*shape))


# ---------------------------------------------------------------------------- what a caller sees


def parts(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (t.a, t.b) if isinstance(t, TwoTensor) else (t,)


def seen(t: torch.Tensor, known: list[torch.Tensor]) -> Any:
    """Facts of a tensor, except for its values."""
    facts = t.requires_grad, t.is_leaf, t._version, t._is_view(), tuple(t.shape), t.stride()
    dense = [(p.stride(), p._version) for p in parts(t)]
    memory = {p.untyped_storage()._cdata for p in parts(t)}
    shared = [
        (t is other, t._base is other, [p.untyped_storage()._cdata in memory for p in parts(other)])
        for other in known
    ]
    return type(t), facts, dense, shared


def observed(f: Callable[..., Any], make: Callable[[], tuple[list[Any], list[Any]]]) -> Any:
    """Observations of a call of ``f``; ``make`` gives leaves, and arguments made of them."""
    torch.manual_seed(0)
    leaves, args = make()
    try:
        out = f(*args)
        known = [*args, *(t for t in pytree.tree_leaves(out))]
        facts = [seen(t, known) for t in known]
    except (RuntimeError, torch._dynamo.exc.TorchRuntimeError):
        return "raises", [p.clone() for t in args for p in parts(t)]
    values = [p.detach().clone() for t in known for p in parts(t)]
    wanted = [t for t in {id(t): t for t in known}.values() if t.requires_grad]
    ones = [
        TwoTensor(torch.ones(()), torch.ones(())) if isinstance(t, TwoTensor) else torch.ones(())
        for t in wanted
    ]
    try:
        if wanted:
            torch.autograd.backward([(t * t.detach().cos()).sum() for t in wanted], ones)
    except RuntimeError:
        facts.append("the backward raises")
    with warnings.catch_warnings():
        # A program may have written one of them, which is no leaf any more then.
        warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf")
        grads = [t.grad for t in leaves]
    facts += [None if g is None else (type(g), g.stride()) for g in grads]
    return facts, values + [p for g in grads if g is not None for p in parts(g)]


def check(f: Callable[..., Any], make: Callable[[], tuple[list[Any], list[Any]]]) -> Any:
    """See that ``f`` jitted is as in eager, twice; the jitted function."""
    jitted = tj.jit(f, session=SESSION)
    facts, values = observed(f, make)
    for _ in range(2):
        my_facts, my_values = observed(jitted, make)
        assert my_facts == facts
        torch.testing.assert_close(my_values, values, equal_nan=True)
    return jitted


def assert_dense(jitted: Any) -> None:
    """See that nothing is left to PyTorch's autograd, and no call computes with a subclass."""
    assert not tj.explain(jitted).declined
    assert not any(call.on_subclass for call in tj.last_trace(jitted).calls)


# ---------------------------------------------------------------------------- programs


def leaf() -> tuple[list[Any], list[Any]]:
    x = two(3, 4).requires_grad_()
    return [x], [x]


def inner_node() -> tuple[list[Any], list[Any]]:
    x = two(3, 4).requires_grad_()
    return [x], [x * 1]


def plain() -> tuple[list[Any], list[Any]]:
    return [], [two(3, 4)]


def an_intermediate(x: Any) -> Any:
    y = x * 2
    y.add_(x)
    return y.sin()


def several_results(x: Any) -> Any:
    y = x * 2
    y[0].mul_(3)
    return y * x, y.sum(), y


def columns(x: Any) -> Any:
    y = x.clone()
    y.t()[0].fill_(3)
    y[..., 1] = x.sum()
    return y * x


def unseen_by_autograd(x: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x * x


def an_argument(x: Any) -> Any:
    before = x + 1
    x.mul_(2).add_(before)
    return before, x.sin()


def an_argument_through_a_view(x: Any) -> Any:
    x.t().exp_()
    return x.view(-1)


def saved_and_written(x: Any) -> Any:
    y = x.exp()
    z = y.relu_()
    return z * 2


def cut_off(x: Any) -> Any:
    y = x.sum(0)
    z = y[1:]
    y.detach_()
    return z, y


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("f", "make"),
    [
        (an_intermediate, leaf),
        (several_results, leaf),
        (columns, leaf),
        (unseen_by_autograd, leaf),
        (an_argument, plain),
        (an_argument, inner_node),
        (an_argument_through_a_view, plain),
        (an_argument_through_a_view, inner_node),
        (cut_off, leaf),
    ],
)
def test_it_is_dense(f: Any, make: Any) -> None:
    assert_dense(check(f, make))


def viewed_saved_and_written(x: Any) -> Any:
    y = torch.nn.functional.linear(x, x)
    x.mul_(2)
    return y


@pytest.mark.parametrize(
    ("f", "make"), [(saved_and_written, leaf), (viewed_saved_and_written, inner_node)]
)
def test_a_gradient_that_eager_refuses_is_refused(f: Any, make: Any) -> None:
    facts, _ = observed(f, make)
    assert "the backward raises" in facts
    check(f, make)


def computed_twice(x: Any) -> Any:
    return x.sin(), x.sin().detach()


def test_results_that_are_equal_hold_no_memory_in_common() -> None:
    """The caller may write to either result."""
    assert_dense(check(computed_twice, plain))


def twice_the_same() -> tuple[list[Any], list[Any]]:
    a = torch.randn(3, 4)
    return [], [TwoTensor(a, a)]


def with_what_it_holds() -> tuple[list[Any], list[Any]]:
    x = two(3, 4)
    return [], [x, x.a]


def two_that_hold_one() -> tuple[list[Any], list[Any]]:
    x = two(3, 4)
    return [], [x, TwoTensor(x.b, x.a + 1)]


def doubled(x: Any) -> Any:
    x.mul_(2)
    return x + 1


def both(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x.sum(0), y + 1


def other(x: Any, y: Any) -> Any:
    y.mul_(2)
    return x.sum(0), y + 1


@pytest.mark.parametrize(
    ("f", "make"),
    [
        (doubled, twice_the_same),
        (both, with_what_it_holds),
        (other, with_what_it_holds),
        (both, two_that_hold_one),
        (other, two_that_hold_one),
    ],
)
def test_arguments_that_hold_the_same_memory(f: Any, make: Any) -> None:
    check(f, make)


class Halving(Labeled):
    """Subclass whose ``copy_`` halves the source."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.aten.copy_.default:
            return super().__torch_dispatch__(func, types, args, kwargs)
        args[0].held.copy_(args[1].held / 2)
        return args[0]


def test_a_class_that_copies_otherwise_runs_as_it_is() -> None:
    def f(x: Any) -> Any:
        x.mul_(2)
        return x + 1

    jitted, expected = tj.jit(f, session=SESSION), Halving(torch.arange(3.0), "a")
    x = Halving(torch.arange(3.0), "a")
    assert torch.equal(jitted(x).held, f(expected).held)
    assert torch.equal(x.held, expected.held)
    reasons = [decline.reason for _, decline in tj.explain(jitted).declined]
    assert "Halving.copy_ does not copy what a tensor holds" in reasons


def test_a_view_that_holds_memory_of_its_own_is_one_to_autograd() -> None:
    def f(y: Any) -> Any:
        y[1:].mul_(2)
        return y

    facts = []
    for run in (f, tj.jit(f, session=SESSION)):
        y = Sideways(torch.ones(3, 4)).requires_grad_() * 1
        out = run(y)
        facts.append((out is y, y._version, type(y.grad_fn)))
    assert facts[0][1] == 1
    assert facts[0] == facts[1]


@pytest.mark.parametrize("later", [lambda x: x, lambda x: x.detach()])
def test_a_write_after_the_call_is_noticed_by_the_backward(later: Any) -> None:
    """The backward saves the parts of the argument, whose version counters see no write."""
    for run in (torch.mul, tj.jit(lambda x, y: x * y, session=SESSION)):
        x, y = (two(3).requires_grad_() * 1 for _ in range(2))
        out = run(x, y)
        with torch.no_grad():
            later(x).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward(TwoTensor(torch.ones(()), torch.ones(())))


def test_what_a_new_subclass_is_made_of_is_written() -> None:
    def f(x: Any) -> Any:
        y = TwoTensor(x.a.sin(), x.b)
        y.mul_(2)
        return y

    jitted = check(f, plain)
    assert any("hold the same memory" in d.reason for _, d in tj.explain(jitted).declined)


# ---------------------------------------------------------------------------- generated ones

STATEMENTS = (
    "{v}.mul_(2)", "{v}.add_(1)", "{o} = {v}.add_({w}.sum())", "{v}.add_(d.sum())",
    "{o} = {v}.relu_()", "{o} = {v}.sin()", "{o} = {v} * {w}.sum()", "{o} = {v}[0]",
    "{o} = {v}[..., 1:]", "{o} = {v}.view_as({v})", "{o} = {v}.reshape(-1)", "{o} = {v}[1:]",
    "{v}.copy_({w}.sum())", "{v}[0] = 5", "{v}[..., 0] = {w}.sum()", "{v}.detach().add_(1)",
    "with torch.no_grad(): {v}.mul_(2)", "{v}.data.mul_(3)", "{o} = {v}.clone()", "{v}.a.mul_(3)",
    "{o} = TwoTensor({v}.a, {v}.b)", "{o} = {v} + 1", "{o}, *_ = {v}.unbind(0)", "{v}.fill_(2)",
    "{o} = {v}.detach()", "{v}.exp_()", "{v}.t_()", "{o} = {v}.contiguous()",
)  # fmt: skip


def generated(seed: int) -> tuple[str, Callable[[], tuple[list[Any], list[Any]]]]:
    """The source of a program of a few statements, and what makes its arguments."""
    rng = random.Random(seed)
    names, lines = ["x", "y"], []
    for i in range(rng.randint(2, 6)):
        v, w = rng.choice(names[-4:]), rng.choice(names)
        line = rng.choice(STATEMENTS).format(v=v, w=w, o=f"v{i}")
        lines.append(line)
        names += [f"v{i}"] * line.startswith(f"v{i}")
    outs = rng.sample(names, min(len(names), 3))
    body = "".join(f"    {line}\n" for line in lines)
    source = f"def f(x, y, d):\n{body}    return [{', '.join(outs)}]\n"
    return source, rng.choice(ARGUMENTS)


def _arguments() -> Iterator[Callable[[], tuple[list[Any], list[Any]]]]:
    yield lambda: ([], [two(3, 4), two(3, 4), torch.randn(4)])

    def leaves() -> tuple[list[Any], list[Any]]:
        made = [two(3, 4).requires_grad_() for _ in range(2)]
        return made, [*made, torch.randn(4)]

    def nodes() -> tuple[list[Any], list[Any]]:
        made = [two(3, 4).requires_grad_(), two(3, 4).requires_grad_()]
        return made, [made[0] * 1, made[1] * 1, torch.randn(4)]

    def views() -> tuple[list[Any], list[Any]]:
        x = two(3, 4)
        return [], [x, x[0:2], torch.randn(4)]

    def held() -> tuple[list[Any], list[Any]]:
        x = two(3, 4)
        return [], [x, two(3, 4), x.b]

    yield from (leaves, nodes, views, held)


ARGUMENTS = tuple(_arguments())


@pytest.mark.filterwarnings("ignore::tj_core.errors.TjWarning")
def test_generated_programs() -> None:
    seeds, dense = range(400 if FULL else 20), 0
    for seed in seeds:
        source, make = generated(seed)
        scope: dict[str, Any] = {"torch": torch, "TwoTensor": TwoTensor}
        exec(source, scope)
        torch._dynamo.reset()
        try:
            jitted = check(scope["f"], make)
        except AssertionError as error:
            raise AssertionError(f"program {seed}:\n{source}{error}") from error
        stats = tj.stats(jitted)
        dense += bool(stats.entries) and not (stats.fallbacks or tj.explain(jitted).declined)
    assert dense >= len(seeds) / 4  # else this compares eager with itself
