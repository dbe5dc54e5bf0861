"""Made-up Functions and custom operators with a backward of their own: a sample of the long run.

``python -m tj_conformance.gradients.own --programs 10000`` is the long run.
"""

from __future__ import annotations

import ast

import pytest
from tj_conformance.gradients.own import compare
from tj_conformance.gradients.owntexts import own_text

pytestmark = pytest.mark.sampled(16)


def test_programs_are_text_that_a_number_makes() -> None:
    for number in range(500):
        made = own_text(number)
        ast.parse(made.text)
        assert made == own_text(number)


@pytest.mark.parametrize("number", range(24))
def test_made_up_backwards_are_eagers(number: int) -> None:
    assert (found := compare(number)) is None, found
