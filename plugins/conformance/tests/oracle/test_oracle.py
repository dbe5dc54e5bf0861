"""Sensitivity of the comparison with eager, and copies that are equal to the arguments in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tj_conformance.oracle.compare import compare, differences, same_bits
from tj_conformance.oracle.twins import clone_tree

BASE = torch.arange(12.0).reshape(3, 4)
COMPLEX = torch.complex(BASE, BASE + 1)

LAYOUTS = {
    "plain": BASE,
    "transposed": BASE.t(),
    "with an offset": BASE[1:, 1::2],
    "expanded": BASE[:, :1].expand(3, 4),
    "conjugate": COMPLEX.conj(),
    "negative": COMPLEX.conj().imag,
    "empty": BASE[:0],
    "sparse": BASE.to_sparse(),
    "needs a gradient": BASE.clone().requires_grad_(),
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_a_copy_is_like_the_original_and_not_it(tensor: torch.Tensor) -> None:
    (copy,) = clone_tree([tensor])
    assert not differences(copy, tensor)
    assert copy is not tensor
    if tensor.layout is torch.strided:
        assert copy.storage_offset() == tensor.storage_offset()
        assert copy.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


def test_copies_share_storage_as_the_originals_do() -> None:
    whole, row, again, other = clone_tree([BASE, BASE[0], BASE, BASE.clone()])
    assert whole is again
    row.zero_()
    assert whole[0].eq(0).all()
    assert other[0].ne(0).any()


def test_a_parameter_stays_one() -> None:
    (copy,) = clone_tree([torch.nn.Parameter(BASE, requires_grad=False)])
    assert type(copy) is torch.nn.Parameter
    assert not copy.requires_grad


def test_bits_are_compared_not_values() -> None:
    zero, nan = torch.zeros(2), torch.full((2,), float("nan"))
    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, -zero)
    (found,) = differences(-zero, zero)
    assert found.rounding
    assert "bits" in str(found)


CHANGES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "shape": (lambda x: x[:1], False),
    "dtype": (lambda x: x.double(), False),
    "strides": (lambda x: x.t().contiguous().t(), False),
    "requires_grad": (lambda x: x.clone().requires_grad_(), False),
    "structure": (lambda x: (x,), False),
    "value": (lambda x: x + 1, False),
    "rounding": (lambda x: x * (1 + 2**-22), True),
}


@pytest.mark.parametrize(("change", "rounding"), CHANGES.values(), ids=CHANGES)
def test_every_change_is_seen(change: Callable[[Any], Any], rounding: bool) -> None:
    (found,) = differences(change(BASE), BASE)
    assert found.rounding is rounding


@pytest.mark.parametrize("bit", ["is_conj", "is_neg"])
def test_lazy_bits_are_seen(bit: str) -> None:
    lazy = COMPLEX.conj()
    resolved = lazy.resolve_conj()
    if bit == "is_neg":
        lazy, resolved = lazy.imag, resolved.imag
    (found,) = differences(resolved, lazy)
    assert found.what == f"{bit} False instead of True"


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (lambda x: x, lambda x: x.clone()),
        (lambda x: x, lambda x: x.view_as(x)),
        (lambda x: x[0], lambda x: x[0].clone()),
        (lambda x: x.clone(), lambda x: x),
    ],
)
def test_what_results_share_is_compared(reference: Any, candidate: Any) -> None:
    assert not compare(reference, reference, (BASE,), {})
    (found,) = compare(reference, candidate, (BASE,), {})
    assert "shares" in str(found)


def test_mutated_arguments_are_compared() -> None:
    def fill(x: torch.Tensor) -> None:
        x.zero_()

    assert not compare(fill, fill, (BASE,), {})
    assert compare(fill, lambda x: None, (BASE,), {})
