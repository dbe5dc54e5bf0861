"""Dead calls are removed, unless their effects can be observed."""

from __future__ import annotations

from tj_core.contract.dialects import Dialect
from tj_core.edit.subprograms import Subprogram
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.trace import Trace
from tj_core.passes.dce import dce
from tj_core.testing.numeric import call, vector
from tj_core.text.language import EMPTY_LANGUAGE, Language

X, Y, Z, W = (vector(n, 2) for n in "xyzw")


def tracked(c):
    """The rule of autograd: a call on values that require grad checks their version counters."""
    return any(p.requires_grad for p in c.flat_args) and c.context.get("grad") is not False


CHECKING = Language((Dialect("num", (), lambda symbol: None, checks_writes=tracked),))


def test_nothing_dead_is_the_same_object():
    trace = Trace((X,), (call("neg", X, outputs=Y),), Y, language=EMPTY_LANGUAGE)
    assert dce(trace) is trace


def test_chains_go_and_what_stays_is_the_same():
    calls = (
        call("neg", X, outputs=Y),
        call("neg", Y, outputs=Z),
        call("split", X, 1, outputs=(vector("l", 1), vector("r", 1))),
        call("neg", Z, outputs=W),
    )
    after = dce(Trace((X,), calls, [{"k": vector("r", 1)}], language=EMPTY_LANGUAGE))
    assert after.calls == (calls[2],)
    assert after.calls[0] is calls[2]
    assert [r.name for r in after.history] == ["dce"]


def test_effects_stay_and_keep_what_they_need():
    seed = call("neg", X, outputs=Y)
    effects = (
        Effects(mutates=(0,)),
        Effects(rebinds=((0, vector("y", 2)),)),
        Effects(ordered=("random:cpu",)),
        Effects(ordered=("side_effect",)),
    )
    for effect in effects:
        trace = Trace(
            (X,), (seed, call("f", Y, outputs=Z, effects=effect)), (), language=EMPTY_LANGUAGE
        )
        assert dce(trace) is trace
    view = Effects(aliases=(Alias(0, "arg", 0),))
    assert (
        dce(
            Trace((X,), (seed, call("f", Y, outputs=Z, effects=view)), (), language=EMPTY_LANGUAGE)
        ).calls
        == ()
    )


def test_a_call_without_outputs_or_effects_goes():
    assert dce(Trace((X,), (call("f", X),), X, language=EMPTY_LANGUAGE)).calls == ()


def test_calls_that_check_for_writes_stay_after_one():
    x, y = vector("x", 2, requires_grad=True), vector("y", 2, requires_grad=True)
    write = call("f", Z, outputs=None, effects=Effects(mutates=(0,)))
    dead = call("neg", x, outputs=y)
    assert dce(Trace((x, Z), (dead, write), (), language=CHECKING)).calls == (write,)
    kept = Trace((x, Z), (write, dead), (), language=CHECKING)
    assert dce(kept) is kept
    unseen = dead.replace(context=dead.context.with_("grad", False))
    assert dce(Trace((x, Z), (write, unseen), (), language=CHECKING)).calls == (write,)
    assert dce(Trace((X, Z), (write, call("neg", X, outputs=Y)), (), language=CHECKING)).calls == (
        write,
    )


def test_in_regions_too():
    x, y = vector("x", 2, requires_grad=True), vector("y", 2, requires_grad=True)
    write = call("f", Z, outputs=None, effects=Effects(mutates=(0,)))
    program = Trace((x,), (call("neg", x, outputs=y),), (), language=CHECKING)
    with_region = call("g", Subprogram(program, (0,)), x, outputs=(W,))
    before = dce(Trace((x, Z), (with_region, write), W, language=CHECKING))
    assert before.calls[0].subprograms[0].program.calls == ()
    after = dce(Trace((x, Z), (write, with_region), W, language=CHECKING))
    assert after.calls[1].subprograms[0].program is program
