"""Kernels get plain arguments, for any names of keywords."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tj_core.compile.plain_arguments import with_plain_arguments
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import OpaqueProxy
from tj_core.ir.runtime import RuntimeValues
from tj_core.ir.symbol import Symbol
from tj_core.ir.trace import BoundSymbol

KEYWORDS = ("_0", "_1", "_kernel", "_plain", "_plain_tree", "_result", "_out_0", "_more", "from",
            "lambda", "out", "plainly")  # fmt: skip


def runtime(plain: Any) -> tuple[RuntimeValues, ...]:
    made = object.__new__(RuntimeValues)
    object.__setattr__(made, "plain", plain)
    return (made,)


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_may_have_any_name(keyword: str) -> None:
    x, y, z = (OpaqueProxy(n, "Cell") for n in "xyz")
    call = BoundSymbol(Symbol("op", "f"), (x, [y]), ((keyword, z),), OpaqueProxy("w", "Cell"))
    seen: list[Any] = []

    def kernel(*args: Any, **kwargs: Any) -> str:
        seen.append((args, kwargs))
        return "made"

    plain = with_plain_arguments(kernel, call, {"y", "z"}, runtime(lambda v: -v))
    assert plain(1, [2], **{keyword: 3}) == "made"
    assert seen == [((1, [-2]), {keyword: -3})]
    same = replace(Effects(), aliases=(Alias(0, "arg", 2, True),))
    call = call.replace(effects=same)
    plain = with_plain_arguments(kernel, call, {"y", "z"}, runtime(lambda v: -v))
    assert plain(1, [2], **{keyword: 3}) == 3
