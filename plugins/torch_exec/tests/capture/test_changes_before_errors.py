"""Changes to Python objects in a call that raises when it runs: those before the error are kept."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import equal_to_eager, scope_of

pytestmark = [pytest.mark.sampled(2), pytest.mark.usefixtures("lenient", "forgotten")]

START = """
x = torch.arange(3.0)
log, state = [], {}
buffer = torch.zeros(3)
table = torch.ones(3, 2).requires_grad_()
class Holder: count = 0
holder = Holder()
def grads():
    found, table.grad = table.grad, None
    return found
def drawn():
    with torch.random.fork_rng(): return torch.rand(2)
torch.manual_seed(3)
"""

PROGRAMS = {
    "a list": "log.append(1)\n    y = x[i]\n    log.append(2)\n    return y * 2",
    "a dict and an attribute": (
        "state['n'] = state.get('n', 0) + 1\n    holder.count += 1\n    y = x[i]\n"
        "    holder.count += 5\n    return y"
    ),
    "a tensor that is kept": "holder.last = x * 2\n    return x[i] + holder.last",
    "gradients": (
        "log.append(1)\n    y = torch.nn.functional.embedding(i, table).sum()\n    log.append(2)\n"
        "    return y"
    ),
    "random numbers": (
        "holder.last = torch.rand(3)\n    y = x[i]\n    log.append(torch.rand(3))\n    return y"
    ),
    "a write before": (
        "log.append(1)\n    buffer.add_(1)\n    y = x[i]\n    buffer.mul_(2)\n    log.append(2)\n"
        "    return y + buffer"
    ),
    "a write and random numbers": (
        "holder.last = torch.rand(3)\n    buffer.add_(holder.last)\n    y = x[i]\n"
        "    log.append(2)\n    return y"
    ),
    "another error": "log.append(1)\n    return torch.linalg.inv(torch.diag(x[:1] + 2 - i))",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_changed_before_an_error_is_kept(name: str) -> None:
    text = f"{START}def f(i):\n    {PROGRAMS[name]}"
    seen = "(log, state, vars(holder), buffer, drawn())"
    train = "(y := f(torch.tensor([2]))).requires_grad and y.backward(), grads()"
    calls = [f"f(torch.tensor([{i}]))" for i in (0, 1, 9, 2, 7)]
    calls = [c for call in calls for c in (call, seen)]
    equal_to_eager(text, *calls, train, seen, plugins=("autograd", "torch"))()


SPECTRAL = """
import torch
torch.manual_seed(0)
linear = torch.nn.utils.spectral_norm(torch.nn.Linear(3, 3))
def change(): linear.half()
def f(n): return linear(torch.ones(n, 3))
"""


def test_a_product_of_two_types_raises_before_anything_is_compiled() -> None:
    """The program writes, and its norm has no functional form: it could not be run again."""
    seen = "(linear.weight.dtype, linear.weight_u.clone())"
    equal_to_eager(SPECTRAL, "f(2)", seen, "change()", "f(2)", seen, "f(2)", seen)()


def raised(text: str, **options: Any) -> tuple[list[int], list[str]]:
    """The list that a program appends to when it raises, and what tj warned of."""
    with scope_of(f"{START}def f(i):\n    {text}") as scope:
        jitted = tj.jit(scope["f"], plugins=["torch"], **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            jitted(torch.tensor([0]))
            scope["log"].clear()
            with pytest.raises(IndexError):
                jitted(torch.tensor([9]))
    own = [str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)]
    return scope["log"], own


def test_a_program_that_raises_is_captured() -> None:
    assert raised("log.append(1)\n    return x[i]", fullgraph=True) == ([1], [])


def test_a_part_that_cannot_be_run_again_says_so() -> None:
    found, own = raised("torch._dynamo.graph_break()\n    log.append(1)\n    return x[i]")
    assert found == []
    (of_break, of_loss) = own
    assert "graph break" in of_break
    assert "changed in Python objects before is lost" in of_loss


def test_a_part_after_which_the_graph_breaks_keeps_its_changes() -> None:
    text = "log.append(1)\n    torch._dynamo.graph_break()\n    return x[i]"
    assert raised(text)[0] == [1]


def test_an_operator_with_side_effects_runs_once() -> None:
    @torch.library.custom_op("tj_tests::seen", mutates_args=())
    def seen(x: torch.Tensor) -> None:
        calls.append(1)

    @seen.register_fake
    def _(x: torch.Tensor) -> None:
        return None

    calls: list[int] = []
    text = "log.append(1)\n    torch.ops.tj_tests.seen(x)\n    return x[i]"
    found, own = raised(text)
    assert (found, len(calls)) == ([], 2)
    assert "changed in Python objects before is lost" in own[0]
