"""Functions on run-time tensors: contents, copies, differences."""

from __future__ import annotations

import pytest
import torch
from tj_torch.ops.dialect.runtime_values import VALUES

KINDS = {
    "contiguous": lambda: torch.rand(3, 5),
    "large": lambda: torch.rand(70_001),
    "transposed": lambda: torch.rand(3, 5).t(),
    "with gaps": lambda: torch.rand(6, 5)[::2, 1:],
    "odd offset": lambda: torch.arange(9, dtype=torch.int8)[3:8],
    "expanded": lambda: torch.rand(3, 1).expand(3, 4),
    "conjugate": lambda: torch.rand(4, dtype=torch.complex64).conj(),
    "negative": lambda: torch.rand(4, dtype=torch.complex64).conj().imag,
    "scalar": lambda: torch.tensor(2.5, dtype=torch.bfloat16),
    "empty": lambda: torch.rand(0, 3),
    "booleans": lambda: torch.rand(7) > 0.5,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "parameter": lambda: torch.nn.Parameter(torch.rand(3)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_equal_and_shares_nothing(kind: str) -> None:
    x = KINDS[kind]()
    y = VALUES.copy(x)
    assert VALUES.observe(y) == VALUES.observe(x.detach())
    assert VALUES.differs(y, x) is None
    assert VALUES.memory(x) is None or VALUES.memory(x) != VALUES.memory(y)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mark_changes_when_somebody_writes(kind: str) -> None:
    x = KINDS[kind]().detach()
    before = VALUES.mark(x)
    assert VALUES.mark(x) == before
    if x.layout is torch.strided and x.numel():
        unseen = x.resolve_conj().resolve_neg() if x.is_complex() or x.is_neg() else x
        memory = torch.empty(0, dtype=x.dtype).set_(
            x.untyped_storage(), x.storage_offset(), (1,), (1,)
        )
        memory[0] = not bool(unseen.flatten()[0])  # the version that is counted is another one
        assert x._version == before[0]
        assert VALUES.mark(x) != before


def test_differences_are_counted_and_measured() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    assert VALUES.differs(x + 1e-7, x) is None
    assert VALUES.differs(x + torch.tensor([0, 0.5, 0]), x) == (
        "has other values: 1 of 3, by up to 0.5"
    )
    assert VALUES.differs(torch.tensor(2.0), torch.tensor(1.0)) == (
        "has other values: 1 of 1, by up to 1"
    )
    nan = torch.tensor([float("nan"), 1.0])
    assert VALUES.differs(nan, nan.clone()) is None
    assert VALUES.differs(nan, torch.tensor([1.0, 1.0])) == (
        "has other values: 1 of 2, by up to nan"
    )
    infinite = torch.tensor([float("inf"), 1.0])
    assert VALUES.differs(infinite, infinite.clone()) is None
    assert VALUES.differs(infinite, -infinite) is not None
    assert VALUES.differs(infinite * 2, infinite) is not None, "what is infinite hides nothing"
    whole = torch.tensor([2**60, 3])
    assert VALUES.differs(whole + 1, whole) == "has other values: 2 of 2, by up to 1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_sums_in_another_order_are_not_different(dtype: torch.dtype) -> None:
    a, b = torch.randn(64, 4096).to(dtype), torch.randn(4096, 64).to(dtype)
    halves = (a[:, :2048] @ b[:2048]) + (a[:, 2048:] @ b[2048:])
    assert VALUES.differs(halves, a @ b) is None
    assert VALUES.differs(a[:, 1:] @ b[1:], a @ b) is not None


def test_in_inference_mode_no_versions_are_counted() -> None:
    with torch.inference_mode():
        x = torch.rand(3)
        before = VALUES.mark(x)
        assert VALUES.mark(x) == before
        x.add_(1)
        assert VALUES.mark(x) != before


def test_plain_tensors_require_no_gradient() -> None:
    assert VALUES.plain is not None
    x = torch.rand(3, requires_grad=True)
    assert not VALUES.plain(x).requires_grad
    assert VALUES.memory(VALUES.plain(x)) == VALUES.memory(x)
    for same in (torch.rand(3), 3, None, "text"):
        assert VALUES.plain(same) is same
