"""Convolutions: gradients and costs, see `tj_suites.gradients.hot`."""

from __future__ import annotations

import pytest
from tj_suites.gradients.hot import case, checks_of
from torch.nn import functional as F

pytestmark = pytest.mark.sampled(16)

CASES = {
    "conv1d": case(F.conv1d, (2, 3, 7), (4, 3, 3), (4,)),
    "conv2d": case(F.conv2d, (2, 3, 5, 5), (4, 3, 3, 3), (4,)),
    "conv2d, no bias": case(F.conv2d, (2, 3, 5, 5), (4, 3, 3, 3)),
    "conv2d, strided": case(
        lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 2)), (2, 3, 5, 5), (4, 3, 3, 3)
    ),
    "conv2d, same": case(lambda x, w: F.conv2d(x, w, padding="same"), (2, 3, 5, 5), (4, 3, 3, 3)),
    "conv2d, dilated": case(lambda x, w: F.conv2d(x, w, dilation=2), (2, 3, 7, 7), (4, 3, 3, 3)),
    "conv2d, groups": case(
        lambda x, w, b: F.conv2d(x, w, b, groups=2), (2, 4, 5, 5), (6, 2, 3, 3), (6,)
    ),
    "conv2d, no batch": case(lambda x, w: F.conv2d(x, w) * 1, (3, 5, 5), (4, 3, 3, 3)),
    "conv3d": case(F.conv3d, (1, 2, 4, 4, 4), (3, 2, 2, 2, 2), (3,)),
    "conv_transpose2d": case(
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1),
        (2, 3, 4, 4),
        (3, 4, 3, 3),
        (4,),
    ),
    "conv_transpose1d, groups": case(
        lambda x, w: F.conv_transpose1d(x, w, groups=2, padding=1), (2, 4, 6), (4, 2, 3)
    ),
}

(
    test_gradients_are_those_of_differences,
    test_results_and_gradients_are_eagers_to_the_bit,
    test_no_more_is_saved_or_run_than_eager_does,
) = checks_of(CASES)
