"""Consequences of guards on size expressions for other expressions."""

import sympy
from sympy import Eq
from tj_torch.ops.sizes.equalities import replaced, solved
from torch.utils._sympy.functions import FloorDiv, Max

a, b, c = sympy.symbols("s0 s1 s2", integer=True, positive=True)
quarter = FloorDiv(a + 3, 4)


def test_a_symbol_is_the_expression_that_a_guard_says_it_is() -> None:
    known = solved([Eq(a - 3 * quarter, b)])
    assert replaced(b, known) == replaced(a - 3 * quarter, known)
    assert replaced(2 * b + 1, known) == replaced(2 * a - 6 * quarter + 1, known)
    assert replaced(a + b, known) != replaced(a - b, known)


def test_equations_together_say_a_number() -> None:
    known = solved([Eq(quarter, 3), Eq(a - 3 * quarter, quarter), Eq(a - 3 * quarter, b)])
    assert replaced(a, known) == 12
    assert replaced(b, known) == 3
    assert replaced(Max(1, a - 3 * quarter), known) == 3


def test_what_no_equation_says_stays() -> None:
    known = solved([sympy.Ne(a, b), a >= b, Eq(a * b, 12), Eq(2 * a, 3 * c)])
    assert not {a, b, c} & set(known)
    assert replaced(a - b, known) == a - b


def test_a_symbol_is_not_replaced_by_what_holds_it() -> None:
    assert a not in solved([Eq(a, 2 * FloorDiv(a, 2))])
