"""Made-up backwards of the user's own that differed from eager once, or differ still."""

from __future__ import annotations

import pytest
from tj_conformance.gradients.own import KNOWN, WAYS, compare
from tj_torch.internal import captures_functions_in_steps

pytestmark = pytest.mark.sampled(16)

FOUND = {
    180: "what eager saved and no gradient needs was written",
    233: "a gradient that is missing, of a call that is recorded as it runs",
    386: "a Function that marks a view as dirty and has two outputs",
    747: "a graph break, after which no gradient comes back: a Function is asked with zeros",
    884: "a backward that raises when Dynamo captures it",
    905: "a Function that marks a view as dirty and returns a number beside it",
    1035: "a setup_context that saves an argument which the forward returns",
    1454: "the same as 747 between two nodes of one program",
    1827: "a setup_context that saves a returned argument, where gradients are off",
    6915: "a gradient of a wrong shape, which raises though nobody needs it",
    7662: "a gradient, recorded as it runs, of other strides than what it is of",
    8244: "the same, for a tangent of other strides",
    9500: "a view that requires gradients where these are off: a leaf that nobody holds",
    10637: "a custom operator whose backward reads what may have changed",
}
"""Programs that were found to differ, or to need a reason not to."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", FOUND)
def test_programs_that_were_found_to_differ(number: int, way: str) -> None:
    assert (found := compare(number, way)) is None, found


@pytest.mark.skipif(
    not captures_functions_in_steps(), reason="PyTorch 2.10: Functions are left to PyTorch"
)
@pytest.mark.parametrize("number", KNOWN)
def test_what_is_listed_differs_still(number: int) -> None:
    assert any(compare(number, way) is not None for way in WAYS)
