"""Private names that PyTorch lacks: each costs one feature, with one warning."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import pytest
import tj_core as tj
import torch
from tj_distributed import adapter, names, plugin, probes, waits
from tj_distributed.options import Options
from tj_torch.capture.lost_features import forget_said
from torch import distributed

EVERYTHING = frozenset(transform.name for transform in plugin.tj_transforms(Options()))


@pytest.mark.probe
def test_the_probes_find_nothing() -> None:
    assert names.TABLE.probe() == {}


@pytest.fixture
def lacking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the name that the test is parametrized by."""
    known = names.NAMES[request.param]
    changed = dataclasses.replace(known, path="torch._no.such")
    monkeypatch.setitem(names.NAMES, request.param, changed)
    monkeypatch.setattr(names.TABLE, "lost", {})
    monkeypatch.setattr(names.TABLE, "looked", False)
    names.forget()
    forget_said(["tj-distributed"])
    yield
    names.forget()


def needing(feature: str) -> list[str]:
    return [name for name, known in names.NAMES.items() if feature in known.features]


@pytest.mark.parametrize("lacking", needing(names.AGREE), indirect=True)
@pytest.mark.usefixtures("lacking")
def test_without_agreement() -> None:
    with pytest.warns(tj.TjWarning, match="ranks that agree"):
        session = tj.Session(["torch", "distributed"])
    f = tj.jit(lambda x: x + 1, session=session)
    assert f(torch.ones(2)).tolist() == [2, 2]
    assert "distributed.begin" not in str(tj.last_trace(f))
    assert _transforms() == {"merge_gathers", "overlap"}


@pytest.mark.parametrize("lacking", needing(names.OVERLAP), indirect=True)
@pytest.mark.usefixtures("lacking")
def test_without_gradients_by_bucket() -> None:
    with pytest.warns(tj.TjWarning, match="gradients by bucket"):
        session = tj.Session(["torch", "distributed"])
    f = tj.jit(lambda x: x + 1, session=session)
    assert f(torch.ones(2)).tolist() == [2, 2]
    assert _transforms() == EVERYTHING - {"overlap"}


@pytest.mark.parametrize("lacking", needing(names.CHECKPOINTS), indirect=True)
@pytest.mark.usefixtures("lacking")
def test_without_the_name_for_backwards() -> None:
    with pytest.warns(tj.TjWarning, match=names.CHECKPOINTS):
        tj.Session(["torch", "distributed"])
    assert _transforms() == EVERYTHING
    assert not adapter.in_backward()


def _transforms() -> set[str]:
    return {transform.name for transform in plugin.tj_transforms(Options())}


def never(*error: BaseException) -> None:
    raise AssertionError("called")


class _Apart:
    """Ranks of which nothing is known."""

    check = explain = staticmethod(never)

    def settled(self) -> bool:
        return False


@pytest.mark.parametrize("lacking", needing(names.WAITS), indirect=True)
@pytest.mark.usefixtures("lacking")
def test_without_waits_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(tj.TjWarning, match="waits that end.* it waits as PyTorch does"):
        tj.Session(["torch", "distributed"])
    monkeypatch.setattr(waits.Waits, "wait_for", None)
    probes.agreeing()
    waits.wait_for(torch.ones(2), _Apart())


@pytest.mark.parametrize("lacking", needing(names.GLOO), indirect=True)
@pytest.mark.usefixtures("lacking")
def test_without_gathers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathers run as they are."""
    if not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    monkeypatch.setattr(adapter, "gather_out", never)
    with pytest.warns(tj.TjWarning, match="gathers at once on gloo"):
        session = tj.Session(["torch", "distributed"])
    operators, world = torch.ops._c10d_functional, "0"
    gather, wait = operators.all_gather_into_tensor, operators.wait_tensor
    f = tj.jit(lambda x: wait(gather(x, 1, world)), session=session)
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1, group_name=world)
    try:
        assert f(torch.ones(2)).tolist() == [1, 1]
    finally:
        distributed.destroy_process_group()


def test_waits_in_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.10 needs them; they find collectives of the forward's thread in all versions."""
    if not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    began, where = threading.get_ident(), list[int]()

    def finish(tensor: torch.Tensor) -> None:
        """Find nothing outside of a backward, as in PyTorch 2.10."""
        if torch._C._current_autograd_node() is not None:
            where.append(threading.get_ident())
            adapter.finish(tensor)

    monkeypatch.setattr(waits, "finish", finish)
    with torch.inference_mode():
        probes.waiting()
    assert len(where) == 1
    assert began not in where


def test_the_probe_finds_waits_that_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    if not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    monkeypatch.setattr(waits, "finish", lambda tensor: None)
    with pytest.raises(AssertionError, match="no collective of another"):
        probes.waiting()


def test_the_probe_finds_an_announcement_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    if not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    monkeypatch.setattr("tj_distributed.agreement.Agreement.begin", lambda self, *found: None)
    with pytest.raises(AssertionError, match="has not run"):
        probes.agreeing()


def test_the_probe_finds_a_wrapper_that_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    if not distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    pytest.importorskip("tj_autograd")
    monkeypatch.setattr("tj_distributed.overlap.active", lambda: None)
    with pytest.raises(AssertionError, match="not seen"):
        probes.overlapping()
