"""Solve a program's equality guards for symbols and quotients.

PyTorch's shape environment substitutes a symbol if a guard says that it equals something. For an
expression, such as ``s0 - 3*((s0 + 3)//4)``, it only keeps the guard. Here such guards are solved
as linear equations in which a quotient counts as an unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tj_torch.ops.sizes.lazy_sympy import sympy

__all__ = ["replaced", "solved"]

_TIMES = 3  # substitution passes: a quotient may contain another one that is known


def solved(conditions: Iterable[sympy.Basic]) -> Mapping[sympy.Basic, sympy.Expr]:
    """Substitutions for symbols and quotients from the equations among ``conditions``."""
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
    """``size`` with the substitutions ``known``."""
    for _ in range(_TIMES):
        before, size = size, sympy.expand(size.xreplace(dict(known)))
        if size == before:
            break
    return size


def _solve(difference: sympy.Expr) -> tuple[sympy.Basic, sympy.Expr] | None:
    """Solve ``difference == 0`` for one term; None if no term has coefficient 1 or -1."""
    terms = {t: c for t, c in difference.as_coefficients_dict().items() if t != 1}
    # Quotients first: a symbol's solution would leave the quotient that contains it unknown.
    for term in sorted(terms, key=lambda t: (t.is_Symbol, str(t))):
        others = [t for t in terms if t != term]
        alone = term.is_Symbol or not (term.is_Mul or term.is_Pow)
        if alone and abs(terms[term]) == 1 and not any(o.has(term) for o in others):
            return term, sympy.expand(term - difference / terms[term])
    return None
