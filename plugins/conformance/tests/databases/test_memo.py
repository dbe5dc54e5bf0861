"""The comparison of programs that are compiled with a memo and without one."""

from __future__ import annotations

from tj_conformance.databases.memo import Comparison, Compiled, _in_one_form


def compiled(*guards: str) -> Compiled:
    return Compiled((), (_in_one_form([*guards]),), 0, 0)


def test_a_maximum_that_is_known_is_its_argument() -> None:
    first = compiled("a == 3", "1 < (n + m)*max(1, k)")
    again = compiled("a == 3", "1 < max(1, n + m)*max(1, k)", "max(1, n + m) == (n + m)")
    assert Comparison(first, again, first).problems == []


def test_the_maximum_of_one_is_one() -> None:
    first = compiled("(n + m) == 1", "1 < (n + m)*max(1, k)")
    again = compiled("(n + m) == 1", "1 < max(1, k)*max(1, n + m)", "max(1, n + m) == 1")
    assert Comparison(first, again, first).problems == []


def test_other_guards_differ() -> None:
    first = compiled("1 < (n)*max(1, k)")
    for guards in (("1 < max(1, n)*max(1, k)",), ("1 < (n)*(k)", "max(1, k) == (m)"), ()):
        (problem,) = Comparison(first, compiled(*guards), first).problems
        assert problem.startswith("guards differ: ")
