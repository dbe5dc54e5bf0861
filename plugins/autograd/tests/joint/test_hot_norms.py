"""Norms, activations and softmax: gradients and costs, see `tj_suites.gradients.hot`."""

from __future__ import annotations

import pytest
import torch
from tj_suites.gradients.hot import (
    arguments,
    case,
    checks_of,
    compiled,
    saved_bytes,
    step,
)
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(16)

CASES = {
    "layer_norm": case(lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 4), (4,), (4,)),
    "layer_norm, two dims": case(lambda x, w: F.layer_norm(x, (3, 4), w), (2, 3, 4), (3, 4)),
    "layer_norm, plain": case(lambda x: F.layer_norm(x, (4,), eps=1e-3), (3, 4)),
    "rms_norm": case(lambda x, w: F.rms_norm(x, (4,), w), (3, 4), (4,), more=True),
    "rms_norm, plain": case(lambda x: F.rms_norm(x, (4,), eps=1e-3), (3, 4), more=True),
    "gelu": case(F.gelu, (3, 4)),
    "gelu, tanh": case(lambda x: F.gelu(x, approximate="tanh"), (3, 4)),
    "silu": case(F.silu, (3, 4)),
    "softmax": case(lambda x: F.softmax(x, -1), (3, 4)),
    "softmax, first dim": case(lambda x: F.softmax(x, 0), (3, 4)),
    "softmax, in float32": case(lambda x: F.softmax(x, -1, dtype=torch.float32), (3, 4), more=True),
    "log_softmax": case(lambda x: F.log_softmax(x, -1), (3, 4)),
}

(
    test_gradients_are_those_of_differences,
    test_results_and_gradients_are_eagers_to_the_bit,
    test_no_more_is_saved_or_run_than_eager_does,
) = checks_of(CASES)


def test_less_is_saved() -> None:
    """Intermediates of rms_norm are recomputed."""
    c, args = CASES["rms_norm"], arguments(CASES["rms_norm"], torch.float32)
    run = compiled(c)
    step(run, args)
    assert 0 < saved_bytes(run, args) <= 0.3 * saved_bytes(c.fn, args)
