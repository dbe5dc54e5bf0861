"""Choice of a kernel for a call, by measured times and by checks before a measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_onednn import choice, executor
from tj_onednn.options import Options
from tj_onednn.store import Store
from tj_onednn.timing import Times


class Times2:
    """A planted `compare` with the result ``ratio``, which counts its calls."""

    def __init__(self, ratio: float, stable: bool = True) -> None:
        self.ratio, self.stable, self.asked = ratio, stable, 0

    def __call__(self, theirs: Any, mine: Any, clock: Any) -> Times:
        self.asked += 1
        return Times(0.001, 0.001 * self.ratio, self.stable)


def session(**options: Any) -> tj.Session:
    overrides = {"check": 2, "strict": True, "onednn": options}
    return tj.Session(("onednn", "autograd", "torch"), overrides=overrides)


X, W = torch.randn(64, 32), torch.randn(32, 48)


def taken(jitted: Any) -> bool:
    return any(c.symbol.namespace == "onednn" for c in tj.last_trace(jitted).calls)


def product(where: tj.Session, x: torch.Tensor = X, w: torch.Tensor = W) -> Any:
    jitted = tj.jit(lambda x, w: x @ w, session=where)
    torch.testing.assert_close(jitted(x, w), x @ w)
    return jitted


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (0.5, None),
        (0.94, None),
        (0.96, "oneDNN took 0.96 of the time"),
        (2.0, "oneDNN took 2.00 of the time"),
    ],
)
def test_the_faster_one_runs_it_and_ties_are_pytorchs(
    ratio: float, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "compare", Times2(ratio))
    jitted = product(session())
    assert taken(jitted) is (said is None)
    assert said is None or said in str(tj.explain(jitted))


def test_the_margin_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "compare", Times2(0.9))
    assert taken(product(session(margin=0.05)))
    assert not taken(product(session(margin=0.2)))


def test_what_is_not_stable_stays_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "compare", Times2(0.5, stable=False))
    jitted = product(session())
    assert not taken(jitted)
    assert "not stable" in str(tj.explain(jitted))


def test_each_call_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By all sessions of a machine together; sizes and strides make it another one."""
    times = Times2(0.5)
    monkeypatch.setattr(choice, "compare", times)
    first = session()
    product(first), product(first), product(session())
    assert times.asked == 1
    product(first, X, torch.randn(48, 32).t())
    assert times.asked == 2
    product(first, X[:32])
    assert times.asked == 3


@pytest.mark.bfloat16
def test_a_call_of_another_type_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times2(0.5)
    monkeypatch.setattr(choice, "compare", times)
    first = session()
    product(first), product(first, X.bfloat16(), W.bfloat16())
    assert times.asked == 2
    product(first, X.bfloat16(), W.bfloat16())
    assert times.asked == 2


def test_the_number_of_threads_is_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times, threads = Times2(0.5), torch.get_num_threads()
    monkeypatch.setattr(choice, "compare", times)
    where = session()
    product(where)
    try:
        torch.set_num_threads(threads + 1)
        product(where)
    finally:
        torch.set_num_threads(threads)
    assert times.asked == 2


def test_nothing_is_written_where_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choice, "compare", Times2(0.5))
    monkeypatch.setenv("TJ_CACHE_DIR", "none")
    product(session())
    monkeypatch.setenv("TJ_CACHE_DIR", str(tmp_path / "there"))
    product(session())
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_small_products_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times2(0.5)
    monkeypatch.setattr(choice, "compare", times)
    jitted = product(session(), X[:4, :4], W[:4, :4])
    assert not taken(jitted)
    assert times.asked == 0
    assert "too small" in str(tj.explain(jitted))
    assert taken(product(session(minimum=0), X[:4, :4], W[:4, :4]))


FAULTS = {
    "raises": (RuntimeError("no primitive"), "oneDNN cannot: no primitive"),
    "is wrong": (lambda a, b: (a @ b) * 1.01, "oneDNN is wrong by"),
    "is no number": (lambda a, b: (a @ b) * float("nan"), "oneDNN is wrong by"),
    "lays out otherwise": (lambda a, b: (b.t() @ a.t()).t(), "another layout"),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("choose", ["measure", "always"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_in_the_trial_is_not_taken(
    fault: str, choose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, said = FAULTS[fault]

    def kernel(a: torch.Tensor, b: torch.Tensor) -> Any:
        if isinstance(planted, Exception):
            raise planted
        return planted(a, b)

    monkeypatch.setitem(executor.KERNELS, "aten.mm.default", kernel)
    monkeypatch.setattr(choice, "compare", Times2(0.1))
    jitted = product(session(choose=choose))
    assert not taken(jitted)
    assert said in str(tj.explain(jitted))


def test_a_real_measurement_ends_and_is_kept(tmp_path: Path) -> None:
    """The winner depends on the machine."""
    product(session(cache_dir=str(tmp_path)))
    found = [
        Store(tmp_path / "onednn", store) for store in [choice.machine(torch.get_num_threads())]
    ]
    known = found[0].read()
    assert len(known) <= 1
    assert all(t.theirs > 0 and t.mine > 0 for t in known.values())


def test_measuring_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "compare", Times2(0.5))
    torch.manual_seed(3)
    product(session())
    after = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(4))


@pytest.mark.parametrize(("key", "value"), [("margin", 1.5), ("choose", "never"), ("minimal", 1)])
def test_options_are_checked(key: str, value: Any) -> None:
    with pytest.raises(tj.TjError, match=key):
        session(**{key: value})


def test_the_defaults_are_what_the_docs_say() -> None:
    page = (Path(__file__).parents[3] / "docs" / "onednn.md").read_text("utf-8")
    options = Options()
    for name in ("choose", "margin", "minimum", "precision", "cache_dir", "freeze", "epilogues"):
        text = json.dumps(getattr(options, name))
        assert f"| `{name}` | `{text}` |" in page
