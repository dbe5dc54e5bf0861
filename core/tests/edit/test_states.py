"""States of executors' calls, left out of a program and made anew."""

from __future__ import annotations

import pytest
from tj_core.contract.executors import Claim, Executor, with_state
from tj_core.contract.rules import RuleTable
from tj_core.edit.states import with_states, without_states
from tj_core.errors import PackageError
from tj_core.ir.symbol import Constant, Symbol
from tj_core.ir.trace import Trace
from tj_core.testing.numeric import call, vector
from tj_core.text.language import EMPTY_LANGUAGE

X, Y, Z = (vector(name, 4) for name in "xyz")
CLAIMED = call("mul", X, X, outputs=Y).replace(
    symbol=Symbol("keeper", "num.mul"), executor="keeper"
)
KEEPS = with_state(CLAIMED, Constant("_state_y", ["old"], named=False))
OTHER = call("add", Y, X, outputs=Z)


def keeper(*, keeps: bool) -> Executor:
    claims: RuleTable[Claim] = RuleTable("claim")
    make = (lambda call: [call.label]) if keeps else None
    claims.set("num.mul", Claim(lambda x, y, state=None: x, state=make))
    return Executor("keeper", claims)


def test_a_state_is_left_out_and_made_anew() -> None:
    bare = without_states(Trace((X,), (KEEPS, OTHER), (Z,), language=EMPTY_LANGUAGE))
    assert bare.calls == (KEEPS.replace(kwargs=()), OTHER)
    first, second = with_states(bare, {"keeper": keeper(keeps=True)}).calls
    assert dict(first.kwargs)["state"].value == ["y"]
    assert first.effects == KEEPS.effects
    assert second is OTHER


def test_a_claim_that_keeps_nothing_any_more_is_an_error() -> None:
    trace = Trace((X,), (KEEPS.replace(kwargs=()),), (Y,), language=EMPTY_LANGUAGE)
    with pytest.raises(PackageError, match="nothing makes the state of"):
        with_states(trace, {"keeper": keeper(keeps=False)})
