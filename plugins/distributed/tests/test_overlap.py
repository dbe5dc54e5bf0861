"""Buckets of ``DistributedDataParallel`` are reduced as early as in eager."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Device, DType, TensorProxy
from tj_distributed import buckets, names, overlap
from tj_distributed.buckets import Buckets
from tj_distributed.testing import Failure
from torch import distributed, nn

if TYPE_CHECKING:
    from tj_distributed.testing import Ranks

FILE = str(Path(__file__).with_name("overlapping.py"))
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "in the order of arrival": ("inside", {}),
    "static graph": ("outside", {"static_graph": True, "gradient_as_bucket_view": True}),
    "unused parameters": ("outside", {"find_unused_parameters": True}),
    "compiled before the wrapper is there": ("before", {}),
}

needs_gloo = pytest.mark.skipif(
    not distributed.is_gloo_available(), reason="this PyTorch has no gloo"
)


@needs_gloo
@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_buckets_are_reduced_as_early_as_in_eager(way: str, ranks: Ranks) -> None:
    kind, options = WAYS[way]
    eager = ranks.run(FILE, "run", "eager", options)
    assert len(eager[0][0]) > 2
    for mine, theirs in zip(ranks.run(FILE, "run", kind, options), eager, strict=True):
        assert not isinstance(mine, Failure), mine
        # PyTorch chooses in which order the gradients of one node come: one may be left over.
        assert mine[0][: len(theirs[0])] == theirs[0]
        assert all(map(torch.equal, mine[1], theirs[1]))


@needs_gloo
def test_without_the_option_all_buckets_wait_for_all_gradients(ranks: Ranks) -> None:
    for found, _ in ranks.run(FILE, "run", "inside", {}, False):
        assert {len(passed) for passed in found} == {4}


def vectors(sizes: list[int], bits: list[int]) -> list[TensorProxy]:
    cpu = Device("cpu", None)
    dtypes = [DType(f"float{n}", n, "float") for n in bits]
    pairs = enumerate(zip(sizes, dtypes, strict=True))
    return [
        TensorProxy(f"p{i}", shape=(n,), strides=(1,), dtype=d, device=cpu) for i, (n, d) in pairs
    ]


@pytest.mark.parametrize("rebuilt", [True, False])
@pytest.mark.parametrize("limits", [(40,), (8, 64), (100, 12, 30)])
def test_groups_are_pytorchs_buckets(limits: tuple[int, ...], rebuilt: bool) -> None:
    random.seed(3)
    sizes = [random.randint(1, 20) for _ in range(60)]
    bits = [random.choice([32, 64]) for _ in sizes]
    groups = Buckets(limits, rebuilt).groups(vectors(sizes, bits))
    dtypes = {32: torch.float32, 64: torch.float64}
    tensors = [torch.empty(s, dtype=dtypes[n]) for s, n in zip(sizes, bits, strict=True)]
    ordered = tensors if rebuilt else tensors[::-1]
    found, _ = distributed._compute_bucket_assignment_by_size(ordered, list(limits))
    places = [sorted(i if rebuilt else len(sizes) - 1 - i for i in bucket) for bucket in found]
    mine = {g: [i for i, k in enumerate(groups) if k == g] for g in groups}
    assert sorted(mine.values()) == sorted(places)


def test_limits_are_the_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = SimpleNamespace(
        bucket_bytes_cap=100,
        bucket_bytes_cap_default=True,
        static_graph=False,
        find_unused_parameters=True,
    )
    monkeypatch.setattr(names, "active_ddp", lambda: wrapper)
    assert buckets.active() == Buckets((1 << 20, 100), rebuilt=False)
    wrapper.bucket_bytes_cap_default, wrapper.static_graph = False, True
    assert buckets.active() == Buckets((100,), rebuilt=True)
    wrapper.bucket_bytes_cap_list = [5, 6]
    assert buckets.active() == Buckets((5, 6), rebuilt=True)
    monkeypatch.setattr(names, "active_ddp", lambda: None)
    assert buckets.active() is None


def trained(session: tj.Session) -> tuple[Any, list[str]]:
    """A jitted model after one backward, and its gradients in the order in which they came."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    came: list[str] = []
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name[0]))
    jitted = tj.jit(model, session=session)
    jitted(torch.ones(2, 4)).sum().backward()
    return jitted, came


def in_wrapper(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(overlap, "active", lambda: Buckets((limit,), rebuilt=True))


def test_a_finished_program_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_wrapper(monkeypatch, 1)
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    for kept in (0, 4):
        overrides = {"cache_dir": str(tmp_path)}
        names = ["example_fuser", "torch", "autograd", "distributed"]
        session = tj.Session(names, overrides=overrides)
        jitted, came = trained(session)
        assert came == ["2", "2", "1", "1", "0", "0"]
        assert tj.stats(jitted).program_kept == kept


def test_a_model_that_fits_one_bucket_has_one_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    in_wrapper(monkeypatch, 1 << 20)
    jitted, _ = trained(tj.Session(["torch", "autograd", "distributed"]))
    assert "GRADIENT_GROUP" not in str(tj.last_trace(jitted))


def test_without_tj_autograd_nothing_is_tagged(monkeypatch: pytest.MonkeyPatch) -> None:
    in_wrapper(monkeypatch, 1)
    jitted, came = trained(tj.Session(["torch", "distributed"]))
    assert len(came) == 6
    assert "GRADIENT_GROUP" not in str(tj.last_trace(jitted))
