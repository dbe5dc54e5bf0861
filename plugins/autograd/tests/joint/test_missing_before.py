"""Backwards that users wrote, before a call that has no gradient."""

from __future__ import annotations

import pytest
from tj_conformance.gradients.own import WAYS
from tj_suites.gradients.marks import OWN_BACKWARDS
from tj_suites.gradients.own_backwards import FUNCTIONS, PROGRAMS, check

pytestmark = OWN_BACKWARDS

BEFORE = "before one without gradient"


@pytest.mark.parametrize("program", [p for p in PROGRAMS if BEFORE in p])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_gradient_is_missing_where_autograd_has_none(name: str, program: str) -> None:
    f = PROGRAMS[program](FUNCTIONS[name])
    check(WAYS["torch,autograd"](f), f, program)
