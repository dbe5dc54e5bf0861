"""Tensor constants of bodies as text for other processes."""

from __future__ import annotations

import binascii
import json

import pytest
import torch
from tj_core.extend import Constant
from tj_torch.ops.values.constants import of_text, tensor_constant, text

KEPT = {
    "a number": lambda: torch.tensor(-3.5),
    "whole numbers": lambda: torch.tensor([[1, 2, 3]]),
    "truths": lambda: torch.tensor([True, False]),
    "low precision": lambda: torch.rand(3, 4).bfloat16(),
    "eight bits": lambda: torch.rand(3).to(torch.float8_e4m3fn),
    "complex numbers": lambda: torch.rand(2, dtype=torch.complex128),
    "no elements": lambda: torch.empty(0, 3),
    "other strides of one": lambda: torch.rand(3).as_strided((1, 3, 1), (7, 1, 9)),
    "what is not finite": lambda: torch.tensor([float("nan"), float("inf"), -0.0]),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_constant_is_made_again_of_its_text(kind: str) -> None:
    value = KEPT[kind]()
    constant = tensor_constant(value, {})
    found = text(constant)
    assert found is not None
    made = of_text(found)
    assert (made.dtype, made.shape, made.stride()) == (value.dtype, value.shape, value.stride())
    assert tensor_constant(made, {}).text == constant.text, "the name says all that it holds"
    assert of_text(found) is made
    assert not made.requires_grad
    assert made is not value


NOT_KEPT = {
    "another layout": lambda: tensor_constant(torch.rand(3, 4).t(), {}),
    "a large one": lambda: tensor_constant(torch.zeros(1 << 15), {}),
    "a conjugate": lambda: tensor_constant(torch.rand(2, dtype=torch.complex64).conj(), {}),
    "a parameter": lambda: tensor_constant(torch.nn.Parameter(torch.ones(2)), {}),
    "sparse": lambda: Constant("_tensor_0", torch.eye(2).to_sparse(), named=False),
    "one of the program's": lambda: Constant("_constant0", torch.ones(3), named=False),
    "no tensor": lambda: Constant("_function0", print, named=False),
}


@pytest.mark.parametrize("kind", NOT_KEPT)
def test_of_others_nothing_is_said(kind: str) -> None:
    assert text(NOT_KEPT[kind]()) is None


def test_a_tensor_that_was_written_since_is_not_what_its_name_says() -> None:
    constant = tensor_constant(torch.ones(3), {})
    constant.value.add_(1)
    assert text(constant) is None


def test_a_text_that_does_not_fit_is_an_error() -> None:
    dtype, shape, stride, encoded = json.loads(str(text(tensor_constant(torch.ones(3), {}))))
    with pytest.raises(RuntimeError):
        of_text(json.dumps([dtype, [4], stride, encoded]))
    with pytest.raises(binascii.Error):
        of_text(json.dumps([dtype, shape, stride, "no base 64!"]))
