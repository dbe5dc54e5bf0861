"""Regions of many equal parts, of which one is compiled."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_inductor import compiler
from tj_inductor.kernels import Waiting
from tj_inductor.repeated import running
from torch import optim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHAPES = [(4, 5), (3,), (), (4, 5), (3,), ()] * 5


def parameters(shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(shape).requires_grad_() for shape in shapes]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The kinds of parts of each region that has any."""
    seen: list[Any] = []
    real = compiler.equal_parts

    def watched(region: Any) -> Any:
        parts = real(region)
        seen.extend([] if parts is None else [[len(equal.inputs) for equal in parts]])
        return parts

    monkeypatch.setattr(compiler, "equal_parts", watched)
    return seen


def stepped(
    jit: Callable[..., Any],
    ps: list[torch.Tensor],
    steps: int = 3,
    kind: str = "AdamW",
    **more: Any,
) -> tuple[Any, Any]:
    """The jitted step, and parameters, state and versions after each step."""
    optimizer = getattr(optim, kind)(ps, lr=1e-2, **more)
    step, seen = jit(optimizer.step), []
    for _ in range(steps):
        step()
        values = [x for s in optimizer.state.values() for x in s.values() if x is not None]
        seen.append(copy.deepcopy([[p.detach() for p in ps], values]))
        seen.append([x._version for x in (*ps, *values)])
    return step, seen


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_steps(kind: str, foreach: bool, fusing: Any, found: list[Any]) -> None:
    more: dict[str, Any] = {"foreach": foreach} | ({"momentum": 0.9} if kind == "SGD" else {})
    step, seen = stepped(fusing, parameters(), kind=kind, **more)
    torch.testing.assert_close(seen, stepped(lambda f: f, parameters(), kind=kind, **more)[1])
    # Parameters of three shapes; counts of steps are of a kind of their own.
    assert found[-1] == [10, 10, 10] if kind == "SGD" else sorted(found[-1]) == [10, 10, 10, 30]
    assert str(tj.last_trace(step)).count("= inductor.region_") == 1


def test_some_parameters_have_no_gradient(fusing: Any, found: list[Any]) -> None:
    def without() -> list[torch.Tensor]:
        ps = parameters()
        for p in ps[::4]:
            p.grad = None
        return ps

    torch.testing.assert_close(stepped(fusing, without())[1], stepped(lambda f: f, without())[1])
    assert found


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Waiting, "by_rows"), (running, "_code")],
    ids=["without functions of rows", "code that is not known"],
)
def test_parts_run_one_by_one(
    owner: Any, name: str, fusing: Any, found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, lambda _: None)
    torch.testing.assert_close(
        stepped(fusing, parameters())[1], stepped(lambda f: f, parameters())[1]
    )
    assert found


def test_parameters_in_one_memory(fusing: Any) -> None:
    """Overlapping ones are written in the program's order."""

    def overlapping() -> list[torch.Tensor]:
        memory = torch.linspace(-1, 1, 40)
        made = [memory[i : i + 8].detach().requires_grad_() for i in range(0, 32, 2)]
        for p in made:
            p.grad = torch.ones(8)
        return made

    _, seen = stepped(fusing, overlapping(), kind="SGD", momentum=0.9)
    torch.testing.assert_close(
        seen, stepped(lambda f: f, overlapping(), kind="SGD", momentum=0.9)[1]
    )


@pytest.mark.parametrize("kind", ["RMSprop", "Adamax"])
def test_data_that_is_assigned_between_steps(kind: str, fusing: Any, found: list[Any]) -> None:
    """Other memory, other strides, and memory that two share."""

    def run(jit: Any) -> list[torch.Tensor]:
        ps = parameters([(4, 5)] * 20)
        optimizer = getattr(optim, kind)(ps, lr=1e-2)
        step = jit(optimizer.step)
        for i in range(6):
            if i == 1:
                ps[0].data = ps[0].data.clone()
            elif i == 2:
                ps[1].data = ps[1].data.t().contiguous().t()
            elif i == 3:
                ps[2].data = ps[3].data
            elif i == 4:
                ps[4].data = torch.linspace(0, 1, 25)[5:].view(4, 5)
            step()
        return [p.detach() for p in ps]

    results = [run(jit) for jit in (lambda f: f, fusing)]
    torch.testing.assert_close(*results)
    assert found


def test_parts_that_read_what_another_writes_stay_together(fusing: Any, found: list[Any]) -> None:
    @torch.no_grad()
    def f(ps: list[torch.Tensor], shared: torch.Tensor) -> None:
        old = [shared * 2 + 1 for _ in ps]
        shared.add_(1)
        for p, x in zip(ps, old, strict=True):
            p.mul_(0.5).add_(x).sub_(1)

    results = []
    for g in (f, fusing(f)):
        ps, shared = parameters([(4,)] * 30), torch.ones(4)
        g(ps, shared)
        results.append((ps, shared))
    torch.testing.assert_close(*results)


def test_a_value_that_another_part_replaces(fusing: Any) -> None:
    @torch.no_grad()
    def f(ps: list[torch.Tensor]) -> None:
        old = [p.clone() for p in ps]
        for i, p in enumerate(ps):
            p.copy_(old[i - 1] * 0.5 + 1)

    results, step = [], fusing(f)
    for g in (f, step):
        g(ps := parameters([(4,)] * 30))
        results.append(ps)
    torch.testing.assert_close(*results)


def test_new_results(fusing: Any, found: list[Any]) -> None:
    """Parts that write nothing allocate; floats of each call are places of one tensor."""

    def f(xs: list[torch.Tensor], numbers: list[float]) -> list[torch.Tensor]:
        return [(x * n + 1).sin() / 2 for x, n in zip(xs, numbers, strict=True)]

    xs, g = [torch.randn(3, 4, dtype=torch.float64) for _ in range(20)], fusing(f, dynamic=True)
    for shift in (0.5, 1.5):
        numbers = [i + shift for i in range(20)]
        results = g(xs, numbers)
        torch.testing.assert_close(results, f(xs, numbers))
        assert len({r.data_ptr() for r in results}) == 20
        assert all(r._base is None for r in results)


def test_the_next_session_restores_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path))

    def f(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [(x * 3 + 1).sin() / 2 for x in xs]

    xs = [torch.randn(3, 4) for _ in range(20)]
    for compiled, kept in ((1, 0), (0, 1)):
        session = tj.Session(("inductor", "autograd", "torch"), overrides={"strict": True})
        g = tj.jit(f, session=session)
        torch.testing.assert_close(g(xs), f(xs))
        torch.testing.assert_close(g(xs), f(xs))
        assert (tj.stats(g).region_misses, tj.stats(g).region_kept) == (compiled, kept)
