"""Flex attention: results and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_captured
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

pytestmark = pytest.mark.sampled(16)


QKV = tuple(torch.linspace(-1, 1, 64).reshape(1, 2, 8, 4) * s for s in (1, 2, 3))
SLOPES = torch.tensor([0.5, 2.0])
OFFSETS = torch.linspace(0, 1, 15)


def plain_attention(q, k, v):
    return flex_attention(q, k, v)


def biased(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + SLOPES[h] * (i - j))


def causal(q, k, v):
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, "cpu", BLOCK_SIZE=4)
    return flex_attention(q, k, v, block_mask=mask, score_mod=lambda s, b, h, i, j: s * 2)


def relative(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + OFFSETS[i - j + 7])


def with_statistics(q, k, v):
    return flex_attention(q, k, v, return_lse=True, scale=0.3)


@pytest.mark.parametrize("f", [plain_attention, biased, causal, relative, with_statistics])
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.filterwarnings("ignore:return_lse is deprecated")
def test_flex_attention(f: Callable[..., Any]) -> None:
    assert_captured(f, *QKV, needs_grad=False)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.skipif(torch.__version__ < (2, 11), reason="PyTorch 2.10 does not raise")
def test_flex_attention_has_no_gradient_on_the_cpu() -> None:
    """PyTorch says so, and tj says what PyTorch says."""
    q = QKV[0].clone().requires_grad_()
    for f in (plain_attention, tj.jit(plain_attention)):
        with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
            f(q, q, q)
