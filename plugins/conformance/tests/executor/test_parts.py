"""Parts of the kit: layouts, calls like a call, texts of programs, larger calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tj_conformance.executor.calls import Call, tensors
from tj_conformance.executor.comparison import Tolerance
from tj_conformance.executor.kit import Amount, Kit
from tj_conformance.executor.layouts import LAYOUTS, laid_out
from tj_conformance.executor.operations import matching, operation
from tj_conformance.executor.program import program
from tj_conformance.executor.program_parts import sample
from tj_conformance.executor.subject import subject
from tj_core.extend import Claim, Decline, Executor, RuleTable, hookimpl

MATRIX = torch.arange(12.0).reshape(3, 4)
PICTURE = torch.arange(48.0).reshape(2, 3, 2, 4)

EXPECTED = {
    "transposed": ((3, 4), (1, 3), 0),
    "gaps": ((3, 4), (8, 2), 0),
    "offset": ((3, 4), (4, 1), 3),
    "expanded": ((3, 4), (0, 1), 0),
    "overlapping": ((3, 4), (1, 1), 0),
    "size 0": ((0, 4), (4, 1), 0),
    "size 1": ((1, 4), (4, 1), 0),
    "0-d": ((), (), 0),
    "large": ((24, 32), (32, 1), 0),
    "size 1 and offset": ((1, 4), (4, 1), 3),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_layouts(name: str) -> None:
    (made,) = tensors(laid_out(Call((MATRIX,)), name))
    assert (tuple(made.shape), made.stride(), made.storage_offset()) == EXPECTED[name]
    if name in ("transposed", "gaps", "offset"):
        assert torch.equal(made, MATRIX)


def test_layouts_of_some_tensors_only() -> None:
    assert LAYOUTS["channels_last"](PICTURE).stride() == (24, 1, 12, 3)
    assert LAYOUTS["channels_last"](MATRIX) is MATRIX
    complex_ = MATRIX + 1j
    assert LAYOUTS["conjugated"](complex_).is_conj()
    assert torch.equal(LAYOUTS["conjugated"](complex_), complex_)
    assert LAYOUTS["conjugated"](MATRIX) is MATRIX
    scalar = torch.tensor(1.0)
    assert all(LAYOUTS[name](scalar) is scalar for name in ("transposed", "gaps", "size 0"))


class Products:
    """Takes products of two matrices, which the first samples of `matmul` are not."""

    tj_name = "products"

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("aten.mm.default", Claim(torch.mm))
        return (Executor("products", claims),)


def test_later_samples_of_other_ranks_are_tried() -> None:
    tested = subject("products", [Products(), "torch", "autograd"])
    kit = Kit(tested, Amount(6, 0, False), dtypes=("float32",))
    cell, other = kit.run([operation("matmul"), operation("sum")])
    assert cell.taken > 0
    assert (other.taken, 2 <= other.samples < 6) == (0, True), "after two, one of each rank"


def test_calls_like_a_call() -> None:
    x = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    call = Call((x, torch.tensor([2, 4, 0])), {"scale": torch.ones(2)})
    other = call.other()
    assert [t.tolist() for t in tensors(other)][1:] == [[1, 2, 0], [0.5, 0.5]]
    assert other.args[0].stride() == x.stride()
    assert other.args[0].requires_grad
    assert not call.twins(grad=False).differentiable
    assert [tuple(t.shape) for t in tensors(call.resized(2))] == [(6, 2), (6,), (2,)]
    assert x.detach().sum() == 15, "the call itself is as it was"
    assert Call((torch.ones(1, 3).expand(4, 3),)).shared
    assert not Call((torch.ones(4, 1, 3).transpose(0, 2),)).shared


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[0.5, -1.25], [float("inf"), float("nan")]]).t(),
        torch.tensor([1.1, 2.2], dtype=torch.bfloat16).requires_grad_(),
        torch.tensor([[1, 2, 3]], dtype=torch.int8)[:, 1:],
        torch.empty(0, 3, dtype=torch.float64),
        torch.tensor(True),
        torch.tensor([1 + 2j, 0]),
        torch.ones(1).expand(3),
    ],
    ids=lambda x: f"{x.dtype}",
)
def test_tensors_in_programs(x: torch.Tensor) -> None:
    tested = subject("picky", [Picky(), "torch", "autograd"])
    place = ("float32", 0, "as given")
    text = program(tested, operation("tanh"), place, (Call((x,)),), "calls", "forward", Tolerance())
    (line,) = (line for line in text.splitlines() if line.startswith("x0 = "))
    scope: dict[str, Any] = {"torch": torch}
    exec(line, scope)
    made = scope["x0"]
    assert (made.dtype, made.shape, made.requires_grad) == (x.dtype, x.shape, x.requires_grad)
    assert made.stride() == x.stride()
    torch.testing.assert_close(made, x, rtol=0, atol=0, equal_nan=True)


def test_long_tensors_are_samples() -> None:
    tested = subject("picky", [Picky(), "torch", "autograd"])
    call = sample("tanh", "float32", 0, "large")
    place = ("float32", 0, "large")
    text = program(tested, operation("tanh"), place, (call,), "calls", "forward", Tolerance())
    assert "probes.calls(jit, f, sample('tanh', 'float32', 0, 'large'), 'forward')" in text
    assert "from tj_conformance.executor.program_parts import sample" in text


class Picky:
    """Takes `tanh` of many elements, and computes the last element wrong."""

    tj_name = "picky"

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("torch.tanh", Claim(_but_the_last, _many))
        return (Executor("picky", claims),)


def _but_the_last(x: torch.Tensor) -> torch.Tensor:
    out = x.tanh()
    out.view(-1)[-1] = 2
    return out


def _many(call: Any) -> bool | Decline:
    size = call.flat_args[0].shape
    return True if len(size) == 2 and size[0] > 99 else Decline("it is too small")


def test_a_larger_call_is_tried_where_small_ones_are_declined() -> None:
    tested = subject("picky", [Picky(), "torch", "autograd"])
    kit = Kit(tested, Amount(1, 1, False), first=True, dtypes=("float32",))
    (cell,) = kit.run(matching(["tanh"]))
    (found,) = cell.findings
    assert (found.layout, found.probe) == ("large", "calls")
    assert "1 / 25600" in found.problem
    assert cell.declined == {"it is too small": 1}


def test_a_pattern_fits_all_variants() -> None:
    names = {tested.name for tested in matching(["torch.div", "gelu"])}
    variants = {"div.no_rounding_mode", "div.trunc_rounding", "div.floor_rounding"}
    assert names == {*variants, "nn.functional.gelu"}
    assert [tested.name for tested in matching(["div.trunc*"])] == ["div.trunc_rounding"]
