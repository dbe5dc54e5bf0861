"""Estimated times, the simulated network, and where fences pay."""

from __future__ import annotations

import pytest
from tj_distributed.options import Options
from tj_distributed.schedule.fences import fenced
from tj_distributed.schedule.network import Step, simulated, steps
from tj_distributed.schedule.placing import Limits, placed
from tj_distributed.schedule.times import SPEEDS, Times, collective_seconds
from tj_suites.collectives import Program

CPU = SPEEDS["cpu"]


def times(ranks: int = 2, **given: float) -> Times:
    return Times(lambda group: ranks, given)


def test_a_wait_stands_still_until_the_collective_has_ended() -> None:
    program = [
        Step("s", 3.0, "0"), Step("a", 1.0), Step("w", 0.0, "", (0,)), Step("b", 1.0)
    ]  # fmt: skip
    found = simulated(program)
    assert (found.seconds, found.exposed, found.communication) == (4.0, 2.0, 3.0)


def test_collectives_of_a_group_run_one_after_another() -> None:
    one_group = [Step("s", 2.0, "0"), Step("t", 2.0, "0"), Step("a", 3.0)]
    assert simulated(one_group).exposed == 1.0
    assert simulated([*one_group[:1], Step("t", 2.0, "1"), Step("a", 3.0)]).exposed == 0.0
    assert simulated([]).seconds == 0.0


@pytest.mark.parametrize("ranks", [1, 2, 8, 1024])
def test_seconds_of_collectives(ranks: int) -> None:
    """A reduction is a reduction to shards and a gather."""
    gather, reduction, both = (
        collective_seconds(operation, 1e9, ranks, 1e11, 1e-5)
        for operation in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")
    )
    assert gather == reduction == both / 2
    steps = {1: 0, 2: 1, 8: 3, 1024: 10}[ranks]
    assert gather == pytest.approx((ranks - 1) / ranks / 100 + steps * 1e-5)


def test_products_take_arithmetic_and_others_memory() -> None:
    p = Program()
    x = p.given()
    p.product(p.light(x), x)
    p.view(x)
    p.wait(p.start("A", x))
    light, product, view, start, wait = p.calls
    assert times().seconds(light) == pytest.approx(128 / CPU.memory + CPU.launch)
    slow = times(arithmetic=1.0)
    assert slow.seconds(product) == pytest.approx(128 + CPU.launch)
    assert times(memory=1.0).seconds(light) == pytest.approx(128 + CPU.launch)
    assert [times().seconds(call) for call in (view, start, wait)] == [0, 0, 0]
    assert times(ranks=4).collective(start) == pytest.approx(
        2 * (64 * 3 / 4 / CPU.network + 2 * CPU.latency)
    )


def zero3(count: int) -> Program:
    """Layers whose parameters are gathered and whose gradients are reduced, as captured."""
    p = Program()
    x = p.given()
    for _ in range(count):
        weight = p.gathered(p.given())
        x = p.product(x, weight)
        p.wait(p.start("R", p.product(x, weight)))
    return p


def test_a_schedule_hides_all_but_the_first_gather_and_the_last_reduction() -> None:
    """Each collective takes as long as the products of half a layer."""
    given = {"arithmetic": 128.0, "network": 1e9, "latency": 1.0, "memory": 1e9, "launch": 0.0}
    one = times(**given)
    calls = zero3(8).calls
    captured = simulated(steps(calls, one))
    moved = simulated(steps(placed(calls, Limits(1), fixed=False), one))
    assert captured.communication == pytest.approx(16.0)
    assert captured.exposed == pytest.approx(16.0)
    assert moved.communication == pytest.approx(16.0)
    assert moved.exposed < 4.0
    assert moved.seconds == pytest.approx(16.0 + moved.exposed)


def gradients(crossing: int) -> Program:
    """Four reductions; ``crossing`` light values are made before the first and read at the end."""
    p = Program()
    x = p.given()
    values = [p.light(x) for _ in range(crossing)]
    for _ in range(4):
        x = p.product(x, x)
        p.start("R", x)
    for value in values:
        p.light(value, value)
    return p


def test_fences_stand_where_they_hide_more_than_they_cost() -> None:
    def found(crossing: int = 0, **given: float) -> list[int]:
        p = gradients(crossing)
        every = {"arithmetic": 128.0, "launch": 0.0, "latency": 0.0}
        places = fenced(p.calls, (), times(**{**every, **given}))
        return sorted(place - crossing for place in places)

    assert found(network=32.0) == [1, 3, 5], "nothing is left to hide behind the last one"
    assert found(network=32.0, launch=0.9) == [1, 3, 5]
    assert found(network=32.0, launch=1.9) == [3], "two of them pay for one fence"
    assert found(network=1e12, launch=0.1) == []
    crossing = 2 * 4 * 64.0  # bytes that are written at the first fence, and read behind it
    assert found(4, network=32.0, memory=crossing / 0.9) == [1, 3, 5, 7]
    assert found(4, network=32.0, memory=crossing / 1.1) == [3, 5, 7]


def test_options() -> None:
    for wrong in ({"prefetch": -1}, {"bucket_mb": -1.0}, {"tflops": 0.0}, {"in_flight_mb": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Options(**wrong)  # type: ignore[arg-type]
