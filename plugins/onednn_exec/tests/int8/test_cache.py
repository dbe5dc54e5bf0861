"""Rounded weights: made once, and again after a write, of whatever kind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_onednn.int8 import cache, kernels

pytestmark = pytest.mark.sampled(8)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sizes of the weights that were rounded."""
    found: list[Any] = []

    def quantise(weight: torch.Tensor, transposed: bool = False) -> Any:
        found.append(tuple(weight.shape))
        return kernels.quantise(weight, transposed)

    monkeypatch.setattr(cache, "quantise", quantise)
    return found


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 32))


def near(jitted: Any, net: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        found = tj.compare(jitted, net, (x,)).worst.figures
    assert 1e-5 < found.relative < 0.02


def in_place(net: Any) -> None:
    with torch.no_grad():
        net[0].weight.mul_(-1)


def load(net: Any) -> None:
    net.load_state_dict({name: -value for name, value in net.state_dict().items()})


def step(net: Any) -> None:
    net(torch.randn(4, 64)).sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.5).step()


def fused_step(net: Any) -> None:
    net(torch.randn(4, 64)).sum().backward()
    torch.optim.Adam(net.parameters(), lr=0.5, fused=True).step()


def through_data(net: Any) -> None:
    net[0].weight.data.mul_(-1)


def through_numpy(net: Any) -> None:
    net[0].weight.detach().numpy()[:] *= -1


def of_all_but_one(net: Any) -> None:
    with torch.no_grad():
        net[0].weight[5, 7] = 3


def replaced(net: Any) -> None:
    net[0].weight = torch.nn.Parameter(torch.randn(96, 64))


def other_memory(net: Any) -> None:
    net[0].weight.data = torch.randn(96, 64)


def another_counter(net: Any) -> None:
    """Two tensors on one memory count their writes apart."""
    first = net[0].weight
    net[0].weight = torch.nn.Parameter(first.data)
    with torch.no_grad():
        first.mul_(-1)


WRITES = (
    in_place, load, step, fused_step, through_data, through_numpy, of_all_but_one, replaced,
    other_memory, another_counter,
)  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_seen(write: Callable[[Any], None], rounding: Any, made: list[Any]) -> None:
    net, x = model(), torch.randn(3, 64)
    jitted = rounding(net)
    for _ in range(3):
        near(jitted, net, x)
    assert made == [(96, 64), (32, 96)]
    for _ in range(2):
        write(net)
        gc.collect()
        del made[:]
        for _ in range(3):
            near(jitted, net, x)
        assert made[:1] == [(96, 64)]
        assert len(made) <= 2


@pytest.mark.slow
def test_parameters_stay_as_they_are(rounding: Any) -> None:
    net, x = model(), torch.randn(3, 64)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    parameters = [*net.parameters()]
    near(rounding(net), net, x)
    assert all(a is b for a, b in zip(parameters, net.parameters(), strict=True))
    for name, value in net.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name])


@pytest.mark.slow
def test_parameters_whose_writes_nobody_counts(rounding: Any, made: list[Any]) -> None:
    """They are rounded in every call."""
    with torch.inference_mode():
        net = model()
    jitted, x = rounding(net), torch.randn(3, 64)
    near(jitted, net, x)
    with torch.inference_mode():
        net[0].weight.mul_(-1)
    near(jitted, net, x)
    assert len(made) == 4


@pytest.mark.slow
def test_in_inference_mode(rounding: Any, made: list[Any]) -> None:
    net, x = model(), torch.randn(3, 64)
    jitted = rounding(net)
    with torch.inference_mode():
        for _ in range(3):
            near(jitted, net, x)
    assert len(made) == 2


@pytest.mark.slow
def test_a_weight_that_the_program_writes(rounding: Any) -> None:
    class Writes(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = super().forward(x)
            self.weight.mul_(-2)
            return before + super().forward(x)

    torch.manual_seed(0)
    mine, theirs, x = Writes(64, 48), Writes(64, 48), torch.randn(3, 64)
    theirs.load_state_dict(mine.state_dict())
    jitted = rounding(mine)
    for _ in range(3):
        with torch.no_grad():
            found = tj.compare(jitted, theirs, (x,)).worst.figures
        assert found.relative < 0.03
        assert torch.equal(mine.weight, theirs.weight)


@pytest.mark.slow
def test_a_program_that_is_gone_holds_nothing(rounding: Any) -> None:
    net = model()
    memory = weakref.ref(net[0].weight)
    jitted = rounding(net)
    near(jitted, net, torch.randn(3, 64))
    del jitted, net
    torch.compiler.reset()
    gc.collect()
    assert memory() is None


@pytest.mark.slow
def test_programs_for_other_sizes_share_weights(rounding: Any, made: list[Any]) -> None:
    net = model()
    jitted = rounding(net)
    for rows in (1, 3, 5):
        near(jitted, net, torch.randn(rows, 64))
    assert tj.stats(jitted).entries == 3
    assert len(made) == 2
    in_place(net)
    for rows in (1, 3, 5):
        near(jitted, net, torch.randn(rows, 64))
    assert made[2:] == [(96, 64)]


@pytest.mark.slow
def test_threads_that_run_a_program_for_the_first_time(rounding: Any) -> None:
    net, x = model(), torch.randn(3, 64)
    with torch.no_grad():
        expected = net(x)
    for _ in range(3):
        jitted = rounding(net)
        with futures.ThreadPoolExecutor(4) as pool:

            def run(_: int) -> torch.Tensor:
                with torch.no_grad():
                    return jitted(x)  # noqa: B023

            for found in pool.map(run, range(16)):
                torch.testing.assert_close(found, expected, atol=0.05, rtol=0)


@pytest.mark.slow
def test_a_finished_program_is_found_with_the_same_options_alone(tmp_path: Any) -> None:
    x = torch.randn(3, 64)
    found = []
    for int8 in ([], ["*"], ["*"], ["0"]):
        net = model()
        overrides = {"cache_dir": str(tmp_path), "onednn": {"int8": int8}}
        session = tj.Session(("onednn", "autograd", "torch"), overrides=overrides)
        jitted = tj.jit(net, session=session)
        with torch.no_grad():
            found.append(tj.compare(jitted, net, (x,)).worst.figures.relative)
    assert found[0] < 1e-5
    assert found[1] == found[2] > found[3] > 1e-4
