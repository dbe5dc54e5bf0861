"""Planted faults in programs as installed are found; many programs compile at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_autograd import transform
from tj_conformance.installed.holding import Verdict, hold
from tj_conformance.installed.subject import Jit, Subject
from tj_conformance.oracle.compare import differences
from tj_conformance.oracle.configurations import EXACT, INSTALLED, configured, current
from tj_conformance.oracle.nearness import as_near
from tj_core.extend import TjWarning
from tj_inductor import kernels, lowering

X = torch.linspace(-2, 2, 12).view(3, 4)


def subject(f: Callable[..., Any], name: str = "f", error: float = 0.0) -> Subject:
    """``f`` and its gradient; what it returns under tj is off by ``error``."""

    def run(jit: Jit) -> Iterator[str]:
        x, y = (X.clone().requires_grad_() for _ in range(2))
        out = jit(f)(x) + error
        expected = f(y)
        found = differences(out.detach(), expected.detach())
        yield from map(str, found)
        out.sum().backward()
        expected.sum().backward()
        yield from map(str, differences(x.grad, y.grad))

    return Subject("tests", name, run)


def only(verdicts: Iterator[Verdict]) -> Verdict:
    (verdict,) = verdicts
    return verdict


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1) * x.exp()


def breaking(x: torch.Tensor) -> torch.Tensor:
    y = (x.sin() + 1) * x
    return y * 2 if y.sum().item() > 0 else y + x


def test_the_session_is_a_users(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {"CHECK": "2", "STRICT": "1", "DISABLE": "inductor", "PLUGINS": "torch"}
    for name, value in ours.items():
        monkeypatch.setenv(f"TJ_{name}", value)
    assert current() is EXACT
    with configured() as session:
        assert current() is INSTALLED
        assert tj.jit(chain).__tj__.session is session
        core = session.config.core
        assert (core.check, core.strict, core.plugins, core.executors) == (0, False, None, None)
        executors = [e.name for e in session.executors]
        transforms = {ranked.plugin for ranked in session.transforms}
    assert {"inductor", "onednn", "torch"} <= {*executors}
    assert executors[-1] == "torch"
    assert {"autograd", "autocast", "subclass"} <= transforms
    assert not any("example" in name for name in executors)
    assert current() is EXACT


def test_regions_run_forward_and_backward() -> None:
    verdict = only(hold([subject(chain)]))
    assert verdict.problems == ()
    assert verdict.regions == 2


@pytest.mark.usefixtures("interpreting")
def test_regions_may_be_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "library", lambda source: pytest.fail("a kernel was compiled"))
    verdict = only(hold([subject(chain)], rehearse=False))
    assert verdict.problems == ()
    assert verdict.regions == 2
    assert only(hold([subject(chain, error=1e-3)], rehearse=False)).problems


@pytest.mark.parametrize(("error", "found"), [(1e-7, 0), (1e-3, 1)])
def test_what_is_more_than_rounding_is_found(error: float, found: int) -> None:
    assert len(only(hold([subject(chain, error=error)])).problems) == found
    assert differences(X + error, X)  # to the bit


def test_integers_are_not_rounded() -> None:
    with configured():
        assert differences(torch.tensor([10**9]), torch.tensor([10**9 + 1]))


@pytest.mark.slow
def test_a_fallback_is_found() -> None:
    (problem,) = only(hold([subject(breaking)])).problems
    assert problem.startswith("falls back: ")
    known = Subject("tests", "breaking", subject(breaking).run, breaks=True)
    assert only(hold([known])).problems == ()


def test_a_region_that_fails_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(lowering, "lowered", fail)
    verdict = only(hold([subject(chain)]))
    assert len(verdict.problems) == 2  # forward and backward
    assert all("warns: " in p and "no such kernel" in p for p in verdict.problems)
    assert verdict.regions == 0


def test_a_pass_that_fails_is_found_where_a_graph_breaks_anyway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(transform, "joint", fail)
    known = Subject("tests", "breaking", subject(breaking).run, breaks=True)
    problems = only(hold([known])).problems
    assert any("the pass " in p and "planted" in p for p in problems)


def test_a_warning_that_nobody_sees_is_found() -> None:
    def run(jit: Jit) -> Iterator[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn(TjWarning("tj: something is odd"), stacklevel=2)
        yield from ()

    assert only(hold([Subject("tests", "odd", run)])).problems == ("warns: tj: something is odd",)


def test_the_kernels_of_all_programs_are_compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    original = kernels.library

    def counted(source: str) -> Any:
        made.append(source)
        return original(source)

    monkeypatch.setattr(kernels, "library", counted)
    monkeypatch.setattr(kernels, "_alone", lambda kernel: pytest.fail("one was compiled alone"))
    programs: list[Callable[..., Any]] = [
        chain,
        lambda x: (x.cos() * 2).relu() + 1,
        lambda x: (x * x.shape[0] + 1).tanh(),
    ]
    verdicts = list(hold([subject(f, f"program {i}") for i, f in enumerate(programs)]))
    assert [v.problems for v in verdicts] == [(), (), ()]
    assert all(v.regions for v in verdicts)
    assert len(made) == 1


def test_sizes_that_become_symbols_are_compiled_with_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_alone", lambda kernel: pytest.fail("one was compiled alone"))

    def run(jit: Jit) -> Iterator[str]:
        jitted = jit(chain)
        for n in (3, 5, 7, 9):
            x = torch.rand(n, 4)
            yield from map(str, differences(jitted(x), chain(x)))

    verdict = only(hold([Subject("tests", "sizes", run)]))
    assert verdict.problems == ()
    assert verdict.regions == 2


def test_double_precision_judges() -> None:
    exact = torch.linspace(1, 2, 50, dtype=torch.float64)
    eager = exact.float() + 1e-3 * torch.linspace(-1, 1, 50)
    as_far = exact.float() - 1.9e-3 * torch.linspace(-1, 1, 50)
    farther = exact.float() - 2.1e-3 * torch.linspace(-1, 1, 50)
    once = exact.float()
    once[3] += 2.5e-3
    often = exact.float() + 1e-3
    assert as_near([as_far], [eager], lambda: [exact])
    assert not as_near([farther], [eager], lambda: [exact])
    assert not as_near([once], [eager], lambda: [exact])
    assert as_near([often], [eager], lambda: [exact])  # twice the median, and no more at most
    assert not as_near([often + 1e-4], [eager], lambda: [exact])
    assert not as_near([eager], [eager], lambda: [])
