"""What follows from a program's guards that say that two sizes are equal.

PyTorch's shape environment replaces a symbol where a guard says what the symbol is. Where a guard
says it of an expression, such as ``s0 - 3*((s0 + 3)//4)``, it keeps the guard alone. Here such
guards are solved as linear equations, in which a quotient stands for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sympy

__all__ = ["replaced", "solved"]

_TIMES = 3  # a quotient may hold another one, whose value is known


def solved(conditions: Iterable[sympy.Basic]) -> Mapping[sympy.Basic, sympy.Expr]:
    """For the equations among ``conditions``: what to write for a symbol or quotient."""
    known: dict[sympy.Basic, sympy.Expr] = {}
    for condition in conditions:
        if not isinstance(condition, sympy.Eq):
            continue
        difference = replaced(sympy.expand(condition.lhs - condition.rhs), known)
        found = _solve(difference)
        if found is not None:
            term, value = found
            known = {t: replaced(v, {term: value}) for t, v in known.items()}
            known[term] = value
    return known


def replaced(size: sympy.Expr, known: Mapping[sympy.Basic, sympy.Expr]) -> sympy.Expr:
    """``size`` with what is ``known`` of its terms."""
    for _ in range(_TIMES):
        before, size = size, sympy.expand(size.xreplace(dict(known)))
        if size == before:
            break
    return size


def _solve(difference: sympy.Expr) -> tuple[sympy.Basic, sympy.Expr] | None:
    """A term of ``difference``, and what it is where the difference is zero."""
    terms = {t: c for t, c in difference.as_coefficients_dict().items() if t != 1}
    # A quotient before a symbol: its value is of more use than that of a symbol inside of it.
    for term in sorted(terms, key=lambda t: (t.is_Symbol, str(t))):
        others = [t for t in terms if t != term]
        alone = term.is_Symbol or not (term.is_Mul or term.is_Pow)
        if alone and abs(terms[term]) == 1 and not any(o.has(term) for o in others):
            return term, sympy.expand(term - difference / terms[term])
    return None
