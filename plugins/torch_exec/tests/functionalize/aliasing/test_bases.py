"""Arguments that share memory: programs with bases, one per aliasing pattern, and their limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_conformance.programs.aliasing import Scene, check, stateless
from tj_conformance.sampling import pairwise
from tj_core.ir.stage import Stage

if TYPE_CHECKING:
    from tj_core.ir.trace import Trace

pytestmark = pytest.mark.sampled(4)

Make = Callable[[], Scene]


def write(a, b):
    a.mul_(2)
    return a + b.sum(), b[:1]


def write_both(a, b):
    a.add_(b.sum())
    b.mul_(a.sum())
    return [b]


def write_unseen(a, b):
    with torch.no_grad():
        a.mul_(2)
    return a.sum() + b.sum()


def turn_and_write(a, b):
    a.unsqueeze_(0)
    b.add_(1)
    return a * 2


def matrix(*, grad: bool = False) -> torch.Tensor:
    p = torch.arange(1.0, 13).reshape(3, 4)
    return p.requires_grad_() if grad else p


def of_one(grad: bool, *cut: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    def make() -> Scene:
        p = matrix(grad=grad)
        q = p * 1
        return Scene(tuple(view(q) for view in cut), (p, q))

    return make


WAYS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], ...]] = {
    "rows": (lambda q: q[:2], lambda q: q[1:]),
    "the base itself": (lambda q: q, lambda q: q[1:]),
    "the base comes last": (lambda q: q[1], lambda q: q),
    "columns": (lambda q: q[:, 1:], lambda q: q[:, :3]),
    "a transpose": (lambda q: q.t(), lambda q: q[1]),
    "other shapes": (lambda q: q.view(-1)[2:8], lambda q: q.view(2, 6)),
    "one expanded": (lambda q: q[0], lambda q: q[0, :1].expand(4)),
    "an element": (lambda q: q[1, 1], lambda q: q[1]),
}
PROGRAMS = [write, write_both, write_unseen, turn_and_write]


def functional(*, gradients: bool) -> tj.Session:
    if gradients:
        return tj.Session(["torch", "autograd"])
    return tj.Session(["torch"], overrides={"torch": {"functional": "always"}})


def shared(jitted: Any) -> list[Trace]:
    """Last traces of the programs for arguments that share memory."""
    others = jitted.__tj__.last.compilation.others
    return [t.traces[-1] for name, t in others.items() if name.startswith("shared")]


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    **pairwise(program=PROGRAMS, way=WAYS, gradients=["none", "PyTorch's", "traced"])
)
def test_every_way_of_sharing_is_eagers(program, way, gradients) -> None:
    session, grad = functional(gradients=gradients == "traced"), gradients != "none"
    apart = of_one(grad, *(lambda q, view=view: view(q).clone() for view in WAYS[way]))
    together = of_one(grad, *WAYS[way])
    scenes = [apart, together, apart, together]
    report = check(stateless(program), scenes, jit=lambda f: tj.jit(f, session=session))
    assert str(report) == "equal"


@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
def test_the_program_is_functional_and_made_once_per_way(grad) -> None:
    # Results that depend on what is written are left to autograd where they have a gradient.
    program = (lambda a, b: a.mul_(b.detach().sum())) if grad else write
    jitted = tj.jit(program, session=functional(gradients=grad))
    cuts = [lambda q: (q[:2], q[1:]), lambda q: (q[1:], q[:2])]
    for cut in (*cuts, *cuts):
        jitted(*cut(matrix(grad=grad) * 1))
    assert tj.stats(jitted).entries == 1
    programs = shared(jitted)
    assert len(programs) == 2
    for trace in programs:
        assert not any(call.effects.mutates for call in trace.calls)
        assert [p.name for p in trace.inputs if "MEMBER" in p.tags] == ["a_1", "b_1"]
    stages = {t.stage for t in jitted.__tj__.last.compilation.others["shared_0"].traces}
    assert (Stage.JOINT in stages) is grad
    assert tj.last_trace(jitted, "shared") is programs[-1]


def test_memory_that_is_shared_and_does_not_overlap_needs_no_base() -> None:
    jitted = tj.jit(write, session=functional(gradients=False))
    q = matrix()
    jitted(q[:1], q[2:])
    assert not shared(jitted)
    with pytest.raises(tj.TjError, match="no call's arguments shared memory"):
        tj.last_trace(jitted, "shared")


def detached() -> Scene:
    p = matrix()
    return Scene((p.detach()[1:], p[:2]), (p,))


def data() -> Scene:
    p = matrix()
    return Scene((p.data[1:], p.data), (p,))


def bits() -> Scene:
    p = matrix()
    return Scene((p.view(torch.int32)[1:], p), (p,))


def far_away() -> Scene:
    p = torch.arange(100.0)
    return Scene((p[90:], p[92:].detach()), (p,))


def gaps() -> Scene:
    p = torch.arange(24.0).reshape(3, 8)[:, ::2].detach()
    return Scene((p[1:], p[:2]), (p,))


def seen_by_one() -> Scene:
    p = matrix(grad=True)
    q = p * 1
    return Scene((q[1:], q.detach()), (p, q))


@pytest.mark.parametrize(
    **pairwise(
        make=[detached, data, bits, far_away, gaps, seen_by_one],
        program=PROGRAMS[:3],
        gradients=[False, True],
    )
)
def test_what_autograd_knows_in_other_ways_is_eagers_too(make, program, gradients) -> None:
    session = functional(gradients=gradients)
    report = check(stateless(program), [make], jit=lambda f: tj.jit(f, session=session))
    assert str(report) == "equal"


def test_mere_memory_has_a_base_where_no_gradient_is_needed() -> None:
    jitted = tj.jit(write, session=functional(gradients=False))
    jitted(*detached().args)
    (trace,) = shared(jitted)
    assert "MEMORY" in trace.inputs[-1].tags


@pytest.mark.parametrize("make", [bits, far_away, gaps, seen_by_one])
def test_what_has_no_base_runs_as_written(make) -> None:
    jitted = tj.jit(write, session=functional(gradients=False))
    jitted(*make().args)
    assert not shared(jitted)


def test_sizes_that_differ_from_call_to_call() -> None:
    session = functional(gradients=False)
    jitted = tj.jit(write, session=session, dynamic=True)
    for rows in (2, 3, 4):
        p, q = (torch.arange(5.0 * rows).reshape(rows, 5) for _ in "ab")
        expected = write(p[1:], p[:-1])
        found = jitted(q[1:], q[:-1])
        torch.testing.assert_close(found, expected)
        assert torch.equal(p, q)


def test_an_error_in_the_middle_leaves_what_eager_leaves() -> None:
    def program(a, b):
        a.mul_(2)
        return torch.gather(b, 0, (a[:1] > 0).long() * 7)

    jitted = tj.jit(program, session=functional(gradients=False))
    p, q = torch.ones(6), torch.ones(6)
    for run, x in ((program, p), (jitted, q)):
        with pytest.raises(RuntimeError, match="out of bounds"):
            run(x[:4], x[2:])
    assert torch.equal(p, q)
    assert p._version == q._version
