"""Attention: gradients and costs, see `tj_suites.gradients.hot`."""

from __future__ import annotations

import pytest
import torch
from tj_suites.gradients.hot import (
    MASK,
    arguments,
    case,
    checks_of,
    compiled,
    saved_bytes,
    step,
)
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(16)

QKV = ((2, 4, 3, 8),) * 3
SHARED = ((2, 4, 3, 8), (2, 2, 3, 8), (2, 2, 3, 8))
sdpa = F.scaled_dot_product_attention

CASES = {
    "sdpa": case(sdpa, *QKV),
    "sdpa, causal": case(lambda q, k, v: sdpa(q, k, v, is_causal=True, scale=0.3), *QKV),
    "sdpa, mask": case(lambda q, k, v: sdpa(q, k, v, MASK[:1].expand(3, 3)), *QKV),
    "sdpa, mask with gradient": case(lambda q, k, v, m: sdpa(q, k, v, m), *QKV, (3, 3), more=True),
    "sdpa, dropout": case(lambda q, k, v: sdpa(q, k, v, dropout_p=0.4), *QKV, more=True),
    "sdpa, grouped": case(lambda q, k, v: sdpa(q, k, v, enable_gqa=True), *SHARED, more=True),
}

(
    test_gradients_are_those_of_differences,
    test_results_and_gradients_are_eagers_to_the_bit,
    test_no_more_is_saved_or_run_than_eager_does,
) = checks_of(CASES)


def test_less_is_saved() -> None:
    """The mask of dropout is saved with one byte per element."""
    c, args = CASES["sdpa, dropout"], arguments(CASES["sdpa, dropout"], torch.float32)
    run = compiled(c)
    step(run, args)
    assert 0 < saved_bytes(run, args) <= 0.9 * saved_bytes(c.fn, args)
