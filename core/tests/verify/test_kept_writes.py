"""A pass that puts a call without effects in the place of one that writes is found, and named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
from tj_core.compile.transforms import Transform
from tj_core.contract.rules import RuleTable
from tj_core.edit.rewrite import CallEditor, Replacement
from tj_core.errors import VerificationError
from tj_core.ir.stage import Stage
from tj_core.testing.numeric import NumericPlugin

if TYPE_CHECKING:
    from tj_core.ir.trace import BoundSymbol, Trace


def rewritten(symbol: str, check: int, program: Any) -> Any:
    """``program`` with each fill replaced by ``symbol``."""

    def rule(call: BoundSymbol, editor: CallEditor) -> Replacement:
        x = call.flat_args[0]
        args = (x, 2.0) if symbol == "num.fill_" else (x,)
        (out,) = call.flat_outs
        made = editor.call(symbol, *args, outputs=(editor.fresh("instead"),))
        return Replacement((made,), {out.name: made.flat_outs[0]})

    table: RuleTable[Any] = RuleTable("rules")
    table.set("num.fill_", rule)
    transform = Transform("mine", lambda trace, c: c.rewrite(trace, table), Stage.ACQUIRED)
    session = tj.Session(plugins=[NumericPlugin()], overrides={"check": check})
    return tj.jit(program, session=session, transforms=(transform,))


def fills(x: Any) -> Any:
    y = -x
    y.fill_(3.0)
    return y


@pytest.mark.parametrize("check", [1, 2])
def test_a_forgotten_write_is_found(check: int) -> None:
    message = (
        r"after mine: call '.*' \(num.fill_\) wrote to 't', and num.neg does not: the old value "
        "stays in memory"
    )
    with pytest.raises(VerificationError, match=message) as error:
        rewritten("num.neg", check, fills)([1.0, 2.0])
    assert "transform 'mine' of the call (transforms=) made a wrong trace" in str(error.value)
    assert error.value.source is not None


def test_a_write_in_the_place_of_a_write_is_none() -> None:
    assert rewritten("num.fill_", 1, fills)([1.0, 2.0]) == [2.0, 2.0]


def test_a_write_that_nobody_reads_may_go() -> None:
    def unread(x: Any) -> Any:
        fills(x)
        return x + x

    def without(trace: Trace, context: Any) -> Trace:
        return trace.replace(calls=trace.calls[-1:])

    transform = Transform("mine", without, Stage.ACQUIRED)
    session = tj.Session(plugins=[NumericPlugin()], overrides={"check": 1})
    assert tj.jit(unread, session=session, transforms=(transform,))([1.0]) == [2.0]
