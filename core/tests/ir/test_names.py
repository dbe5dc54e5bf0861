"""Names of values and names of tj's own, which differ in form."""

from __future__ import annotations

import keyword
import unicodedata

import pytest
from tj_core.ir.names import Namer, formal_index, formal_input, formal_value, is_own

WISHES = (
    *("a0", "a1", "a10", "a٣", "_0", "_1_2", "_", "__", "_args", "_box", "_error", "_0x"),
    *("None", "in", "class", "lambda", "slice", "float", "x", "x_1", "torch", "", "3d", "y.z"),
    *("ﬁ", "fi", "𝐱", "ｘ", "ª", "a²", "a０", "變", "x y", "é", "e\u0301", "٣"),  # noqa: RUF001
)


@pytest.mark.parametrize("wish", WISHES)
def test_a_value_has_no_name_of_tjs_own(wish: str) -> None:
    for name in (namer := Namer({"torch"}))(wish), namer(wish):
        assert not is_own(name)
        assert name not in {"torch", "slice", "float"}
        assert name.isidentifier()
        assert not keyword.iskeyword(name)
        assert unicodedata.normalize("NFKC", name) == name


def test_all_names_of_one_program_differ_as_python_reads_them() -> None:
    namer = Namer(())
    made = [namer(w) for w in (*WISHES, *WISHES)] + [namer.constant(w) for w in WISHES]
    made += [namer.own(w) for w in ("_args", "_box", "_error")]
    assert len({unicodedata.normalize("NFKC", name) for name in made}) == len(made)


@pytest.mark.parametrize("wish", WISHES)
def test_a_constant_meets_neither_a_value_nor_a_formal_name(wish: str) -> None:
    name = Namer(()).constant(wish)
    assert is_own(name)
    assert name.isidentifier()
    assert name not in {formal_value(i) for i in range(20)}


def test_formal_names() -> None:
    assert [formal_input(2), formal_value(3)] == ["a2", "_3"]
    assert formal_index(formal_input(12)) == 12
    assert is_own(formal_input(12))
    assert is_own(formal_value(0))
    assert not is_own("a")
    assert not is_own("ab1")
    assert not is_own("x_0")
