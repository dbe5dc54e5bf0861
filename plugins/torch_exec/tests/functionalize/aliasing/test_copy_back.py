"""An executor that declares it copies new values back to arguments does so inside the program."""

from __future__ import annotations

import functools

import pytest
import tj_core as tj
import torch
from tj_conformance.programs.aliasing import check, stateless
from tj_conformance.programs.scenes import pair, placed, same
from tj_core.extend import BoundSymbol, Claim, Decline, Executor, PluginError, RuleTable
from tj_core.ir.stage import Stage
from tj_core.verify.verifier import verify


def floats_only(call: BoundSymbol) -> bool | Decline:
    target, _ = call.flat_args
    return target.dtype.name.startswith("float") or Decline("copies floats only")


def copier(copied: list[tuple[int, ...]]) -> Executor:
    """Executor that claims only copies, and records their shapes."""

    def copy_back(target: torch.Tensor, value: torch.Tensor) -> None:
        copied.append(tuple(target.shape))
        target.data.copy_(value)

    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("tj.copy_back", Claim(copy_back, floats_only))
    return Executor("copier", claims)


def write(x, y):
    x.mul_(2)
    return x + y


def write_twice_and_return(x, y):
    x.mul_(2)
    y[0] = 5
    x.add_(y)
    return x, y.view(-1), x[0]


def swap(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)


def write_data(x, y):
    x.data.mul_(2)
    return x * y


def write_hidden(x, y):
    with torch.no_grad():
        x.mul_(2)
    y.detach().add_(1)


PROGRAMS = {
    write: (1, 0),
    write_twice_and_return: (2, 0),
    swap: (2, 0),
    write_data: (0, 1),
    write_hidden: (1, 1),
}
"""Numbers of inputs copied back to inside and outside of the program, without gradients."""


@pytest.mark.sampled(12)
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", ["plain", "leaf", "inner"])
def test_as_in_eager(f, kind) -> None:
    copied: list[tuple[int, ...]] = []
    jit = functools.partial(tj.jit, executors=[copier(copied), "..."])
    scenes = [placed(layout, kind) for layout in (pair, same, pair)]
    report = check(stateless(f), scenes, jit=jit, lenient=True, ignore=("grad_fn",))
    assert report.ok, report
    if kind == "plain":
        assert bool(copied) == bool(PROGRAMS[f][0])


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_the_program_copies_at_its_end(f) -> None:
    copied: list[tuple[int, ...]] = []
    jitted = tj.jit(f, executors=[copier(copied), "..."])
    jitted(torch.ones(2, 2), torch.ones(2, 2))
    inside, outside = PROGRAMS[f]
    calls = tj.last_trace(jitted).calls
    assert [c.executor == "copier" for c in calls][::-1][:inside] == [True] * inside
    assert len(copied) == sum(c.executor == "copier" for c in calls) == inside
    outer = [c.symbol.name for c in tj.last_trace(jitted, "epilogue").calls]
    assert outer.count("Tensor.copy_") == outside


def test_others_are_copied_outside() -> None:
    copied: list[tuple[int, ...]] = []
    jitted = tj.jit(write, executors=[copier(copied), "..."])
    x = torch.ones(2, dtype=torch.int64)
    jitted(x, x.clone())  # declined
    assert not copied
    assert torch.equal(x, torch.full((2,), 2))
    assert tj.last_trace(jitted, "epilogue").calls[1].symbol.name == "Tensor.copy_"


def test_what_autograd_sees_is_not_copied_by_others() -> None:
    copied: list[tuple[int, ...]] = []
    jitted = tj.jit(write, executors=[copier(copied), "..."])
    leaf = torch.ones(2, requires_grad=True)
    written = leaf * 1
    jitted(written, leaf)
    assert not copied
    assert written._version == 1
    assert tj.last_trace(jitted).calls[0].effects.mutates


def test_what_follows_a_copy_is_refused() -> None:
    """The verifier proves that all other calls are free of writes."""
    copied: list[tuple[int, ...]] = []
    jitted = tj.jit(write, executors=[copier(copied), "..."])
    jitted(torch.ones(2), torch.ones(2))
    trace = tj.last_trace(jitted, stage="FUNCTIONAL")
    *others, copy = trace.calls

    def again(p):
        return p.replace(name=f"{p.name}_again") if p in others[-1].flat_outs else p

    bad = [
        (
            trace.replace(calls=(*others, copy, others[-1].map_proxies(again))),
            "comes after a value was copied back",
        ),
        (trace.replace(calls=(*others, copy, copy)), "copied back to"),
        (trace.replace(outputs=(trace.inputs[0],)), "returns an input that was copied back to"),
    ]
    for wrong, message in bad:
        with pytest.raises(tj.TjError, match=message):
            verified(wrong)


def verified(trace) -> None:
    verify(trace, tags=tj.Session(["torch"]).tags, reached=[Stage.FUNCTIONAL])


def test_a_copy_that_goes_wrong_is_an_error_and_is_not_done_again() -> None:
    """The acquired program would start from the written values, and write a second time."""
    claims: RuleTable[Claim] = RuleTable("claim")
    claims.set("tj.copy_back", Claim(lambda target, value: (target.data.copy_(value * 2), None)[1]))
    executors = [Executor("wrong", claims), "..."]
    program = tj.jit(write, plugins=["torch"], executors=executors, check=3, strict=False)
    x = torch.ones(2)
    message = "'wrong' ran tj.copy_back .*argument 'x': result 0 has other values"
    with torch.no_grad(), pytest.raises(PluginError, match=message):
        program(x, torch.ones(2))
    assert x.tolist() == [4, 4]
