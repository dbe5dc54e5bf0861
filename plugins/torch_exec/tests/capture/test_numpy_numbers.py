"""Numbers that NumPy computes from constants: values, types, and what PyTorch makes of them."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import captured_whole, equal_to_eager, only_breaks

HEAD = "import math\nimport numpy as np\n"
CALLS = ("f(torch.rand(2, 3, 4))", "f(torch.rand(3, 3, 4))", "f(torch.rand(2, 3, 4))")

VALUES = {
    "a square root": "x / np.sqrt(x.shape[-1])",
    "a logarithm": "-0.5 * 3 * np.log(2 * np.pi) - x.sum()",
    "sizes": "x.view(x.shape[0], np.prod(x.shape[1:])), x.reshape(-1, int(np.prod(x.shape[1:])))",
    "angles": "x <= np.deg2rad(180) - 0.5",
    "rounded": "x * int(np.floor(2.7)), x * np.ceil(2.2), x + np.round(2.5), x - np.rint(1.5)",
    "bounds": "x.clamp(np.minimum(0.1, 0.2), np.maximum(0.5, 0.7)), x * np.clip(2.5, 0, 1)",
    "statistics": "x * np.mean([1, 2, 3]) + np.std((1, 2)) - np.sum([1, 2]) + np.median([3, 1])",
    "types": "x * np.float32(2), x + np.int64(3), np.float64(1.5) * x, np.float64(1.5) < x",
    "casts": "x * np.sqrt(2).astype(np.float32), x * np.sqrt(2).item(), x * float(np.sqrt(2))",
    "arithmetic": "x * (np.sqrt(2) * 2 + 1) ** 2 // np.int64(3) % 2, -np.sqrt(2) * x",
    "builtins": "x * round(np.sqrt(2), 1), x * math.ceil(np.exp(1)), abs(np.int64(-2)) * x",
    "results": "x, np.exp(2), np.prod(x.shape[1:]), np.float32(2), np.exp(2).real, np.exp(4) > 1",
    "conditions": "x * 2 if np.sqrt(4) > 1 else x, x if not np.isnan(2.0) else x + 1",
    "indices": "x[np.int64(1)], x[:, : np.int64(2)], x.sum(np.int64(0)), x[..., np.prod((1, 2))]",
    "texts": "x, f'{np.sqrt(2):.3f} {np.sqrt(2)} {np.int64(3)!r}', str(np.float32(0.1))",
    "kinds": "x, isinstance(np.sqrt(2), float), isinstance(np.prod((2, 3)), int), type(np.exp(0))",
    "loops": "[x + i for i in range(int(np.sqrt(4)))], sum(np.sqrt(i) for i in range(3)) + x.sum()",
    "lists": "sorted([np.sqrt(9), np.sqrt(4), 2.5]), max(np.sqrt(4), 1), x, {np.sqrt(4): 1}[2.0]",
    "factories": "torch.full((2,), np.sqrt(2)), torch.zeros(np.int64(2)), torch.ones(np.int8(3))",
    "keywords": "x.sum(dim=np.int64(0)), x.softmax(dim=np.int64(1)), x.add(x, alpha=np.exp(1))",
    "tensors": "torch.tensor(np.sqrt(2)), torch.as_tensor(np.int16(2)) * x, torch.tensor(np.e)",
    "tensors of a type": "torch.tensor(np.sqrt(2), dtype=torch.half), torch.tensor(np.bool_(1))",
    "limits": "x.clamp(min=np.finfo(np.float32).min), x * np.finfo(np.float32).eps, x * np.inf",
}

IN_PARTS = {
    "a warning": "x * (np.float64(1) / 0), np.log(0.0)",
    "a warning of an operator": "x + np.int64(3) // np.int64(0)",
    "an error": "x * np.clip('a', 0, 1)",
    "an array": "x * np.array([1.0, 2, 3, 4]).sum(), np.linspace(0, 1, 3)",
    "an index": "x[..., np.arange(2)]",
    "a range": "[x + i for i in range(np.int64(2))]",
    "a bool": "x + np.bool_(1), torch.arange(2) + np.isnan(x.shape[0])",
    "a type": "x, np.sqrt(2).dtype, np.sqrt(2).T.nbytes",
    "a tensor of numbers": "x + torch.tensor([np.sqrt(2.0)]), torch.tensor([np.int64(3)])",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
def test_numbers_are_constants(value: str) -> None:
    text = f"{HEAD}def f(x): return {value}"
    equal_to_eager(text, *CALLS)()
    captured_whole(text, CALLS[0])


@pytest.mark.parametrize("value", IN_PARTS.values(), ids=list(IN_PARTS))
def test_what_numpy_has_to_compute_in_each_call_it_computes(value: str) -> None:
    equal_to_eager(f"{HEAD}def f(x): return {value}", *CALLS)()


def test_the_graph_breaks_where_numpy_computes_with_arrays() -> None:
    text = f"{HEAD}def f(x):\n y = x * 2\n return y.sin() * np.cumsum([1, 2, 3]).sum()"
    only_breaks(text, CALLS[0])


OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "<", "==", ">=")
NUMBERS = (
    "np.float64(1.5)",
    "np.float32(1.5)",
    "np.int64(3)",
    "np.int32(2)",
    "np.uint8(2)",
    "np.bool_(1)",
)
TENSORS = (
    *("torch.arange(6)", "torch.arange(6.0)", "torch.arange(6.0).double()", "torch.tensor(2)"),
    *("torch.arange(6).to(torch.uint8)", "torch.arange(6.0).bfloat16()", "torch.ones(3).bool()"),
    "torch.arange(6.0) * 1j",
)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_take_them_as_numbers(operator: str, number: str) -> None:
    """On both sides, for each type of tensors; what raises in eager raises."""
    for a, b in itertools.permutations(("x", number)):
        text = f"{HEAD}def f(x): return {a} {operator} {b}"
        equal_to_eager(text, *(f"f({x})" for x in TENSORS))()


CHANGES = (
    *("np.float64(3)", "np.float64(3)", "np.float32(3)", "np.float64(0.0)", "np.float64(-0.0)"),
    *("np.nan * np.float64(1)", "3.0", "np.int64(3)", "np.bool_(1)", "np.float64(5)"),
)


@pytest.mark.parametrize(
    ("read", "write"), [("h.k", "setattr(h, 'k', {})"), ("d['k']", "d.__setitem__('k', {})")]
)
def test_a_number_that_the_program_finds_is_what_it_is_in_each_call(read: str, write: str) -> None:
    text = f"""{HEAD}
class H: k = 2.5
h, d = H(), {{"k": 2.5}}
def f(x): return -0.5 * {read} * np.log(2 * np.pi) - x, np.sqrt({read} + 1) * x, type({read})
"""
    each = (call for change in CHANGES for call in (write.format(change), "f(torch.ones(2))"))
    equal_to_eager(text, *each)()


def test_a_number_of_a_module_is_a_constant() -> None:
    text = f"{HEAD}m = torch.nn.Linear(2, 2)\nm.d = np.prod((2, 3))\n"
    body = "def f(x): return -0.5 * m.d * np.log(2 * np.pi) - m(x).sum(), x.new_ones(int(m.d))"
    captured_whole(text + body, "f(torch.ones(2))")


OF_MATHEMATICS = {
    "np.pi": lambda x: x * np.log(2 * np.pi),
    "math.pi": lambda x: x * np.exp(math.pi),
    "np.e": lambda x: x * np.sqrt(np.e) + math.tau,
}


@pytest.mark.parametrize("name", OF_MATHEMATICS)
def test_numbers_of_mathematics_are_no_symbols(name: str) -> None:
    f = OF_MATHEMATICS[name]
    jitted = tj.jit(f, dynamic=True, plugins=["torch"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", tj.TjWarning)
        for n in (2, 3):
            assert torch.equal(jitted(torch.ones(n)), f(torch.ones(n)))
