"""Numbers of tensors that the program makes from constants are constants where nothing writes."""

from __future__ import annotations

import pytest
from tj_torch.capture.eager_probe import captured_whole, equal_to_eager

CALLS = ("f(torch.rand(2, 3, 4))", "f(torch.rand(3, 3, 4))")

CONSTANT = {
    "dimensions (DiceLoss of MONAI)": "x.sum(torch.arange(1, len(x.shape)).tolist())",
    "a computed dimension": "x.sum(int((torch.tensor([1, 2, 3]) * 2).sum().item()) // 6)",
    "floats": "x * torch.linspace(0, 1, 5).tolist()[3], (torch.tensor([1, 2]) / 3).tolist()",
    "bools": "x, torch.zeros(3, dtype=torch.bool).tolist(), torch.full((2,), 3).prod().item()",
    "a loop": "[x + i for i in torch.arange(3).tolist()]",
    "rows": "x * torch.ones(2, 2, dtype=torch.int64).cumsum(0).tolist()[1][0]",
}

WRITTEN = {
    "itself": "t.add_(1)",
    "by an operator": "t += 1",
    "a view": "t[1:].add_(1)",
    "another name": "u = t.view(3, 1); u.mul_(x.ndim)",
    "as out": "torch.add(t, 5, out=t)",
    "after it was read": "found = t.tolist(); t.add_(1); x = x * found[1]",
}
"""Statements that write to ``t = torch.arange(3)``."""

UNKNOWN = {
    "random": "x * torch.rand(1).item()",
    "of an argument": "x * x.sum(dtype=torch.int64).item()",
    "out of range": "x * torch.arange(3).tolist()[5]",
    "large": "x * torch.arange(2000).tolist()[7]",
}


@pytest.mark.parametrize("value", CONSTANT.values(), ids=list(CONSTANT))
def test_numbers_are_constants(value: str) -> None:
    text = f"def f(x): return {value}"
    captured_whole(text, CALLS[0])
    equal_to_eager(text, *CALLS)()


@pytest.mark.parametrize("statement", WRITTEN.values(), ids=list(WRITTEN))
def test_numbers_that_the_program_writes_are_read(statement: str) -> None:
    text = f"def f(x):\n t = torch.arange(3)\n {statement}\n return x * t.tolist()[1], t"
    equal_to_eager(text, *CALLS)()


@pytest.mark.parametrize("value", UNKNOWN.values(), ids=list(UNKNOWN))
def test_other_numbers_are_those_of_the_call(value: str) -> None:
    seeded = [f"(torch.manual_seed(0), {call})[1]" for call in CALLS]
    equal_to_eager(f"def f(x): return {value}", *seeded)()
