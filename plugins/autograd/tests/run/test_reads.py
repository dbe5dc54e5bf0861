"""Arguments whose elements a call reads, and copies kept of them for second derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
import torch
from tj_autograd.run.reads import rules, values_read
from tj_core.extend import BoundSymbol, RuleTable, Symbol, TensorProxy, hookimpl

NAMES = ("x", "mean", "var", "weight", "bias")
VALUES = tuple(TensorProxy(name, (3,), (1,)) for name in NAMES)


@pytest.mark.parametrize(("training", "read"), [(True, "x weight bias"), (False, " ".join(NAMES))])
def test_running_statistics_are_read_in_evaluation(training: bool, read: str) -> None:
    norm = Symbol("torch", "nn.functional.batch_norm")
    call = BoundSymbol(norm, VALUES, (("training", training),))
    assert [p.name for p in values_read(call, rules())] == read.split()
    size = BoundSymbol(Symbol("aten", "sym_size.int"), (VALUES[0], 0))
    assert values_read(size, rules()) == []


class Says:
    """A plugin with a rule that an operation does not read its second argument."""

    tj_name = "says"

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        table: RuleTable[Any] = RuleTable("reads")
        table.set("torch.ops.tj_reads.first.default", lambda call: call.flat_args[:1])
        return (table,)


@torch.library.custom_op("tj_reads::first", mutates_args=())
def first(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return x.sin()


first.register_fake(lambda x, like: torch.empty_like(x))
first.register_autograd(
    lambda ctx, grad: (grad * ctx.saved_tensors[0].cos(), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@pytest.mark.parametrize("said", [False, True])
def test_what_is_not_read_is_not_kept_for_second_derivatives(said: bool) -> None:
    def f(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        y = torch.ops.tj_reads.first.default(x, like) * x
        like.mul_(2)
        return y

    jitted = tj.jit(f, plugins=[*([Says()] if said else []), "torch", "autograd"])
    x = torch.ones(3, requires_grad=True)
    out = jitted(x, torch.ones(3))
    assert len(out.grad_fn.inputs.copies) == (not said), "what is read and written has to be kept"
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(grad.sum(), x)
    expected = 2 * x.cos() - x * x.sin()
    torch.testing.assert_close(again, expected.detach())
