"""Kernels that deviate from the trace are found when a program first runs.

Claims of the numeric dialect; `plugins/autograd/tests/run/test_first_run.py` has PyTorch's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
from tj_core.analysis.results import Run, differences, unequal
from tj_core.contract.decline import Decline
from tj_core.errors import PluginError
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.proxy import NumberProxy, OpaqueProxy
from tj_core.testing.fusing import LoopPlugin
from tj_core.testing.numeric import VALUES, NullPlugin, NumericPlugin, vector

if TYPE_CHECKING:
    from tj_core.contract.fusion import FusionRegion

RUNTIME = (VALUES,)
X, Y = vector("x", 2), vector("y", 2)


def jitted(
    fn: Callable[..., Any], symbol: str, kernel: Callable[..., Any], check: int | str = 2
) -> Any:
    plugins = [NullPlugin(symbol, name="acme", answer=kernel), NumericPlugin()]
    return tj.jit(fn, session=tj.Session(plugins=plugins, overrides={"check": check}))


def writes(x: list[float]) -> list[float]:
    x[0] = 9.0
    return [-v for v in x]


WRONG = {
    "nothing": (lambda x: None, "result 0 is a NoneType, not a plain tensor"),
    "another size": (lambda x: [*x, 0.0], r"result 0 has shape \(3\), not \(2\)"),
    "two values": (lambda x: (x, x), "result 0 is a tuple, not a plain tensor"),
    "its argument": (lambda x: x, "result 0 is in the memory of its argument '.*'"),
    "a write": (writes, "it wrote to argument 'x', which the trace does not say"),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_executor_is_named_and_not_the_next_call(what: str) -> None:
    kernel, problem = WRONG[what]
    program = jitted(lambda x: -x + x, "num.neg", kernel)
    with pytest.raises(PluginError, match=problem) as error:
        program([1.0, 2.0])
    message = error.value.message
    assert message.startswith("executor 'acme' of plugin 'acme' (inline) ran num.neg for 't', and ")
    assert error.value.source is not None
    assert error.value.source.file == __file__


def test_a_kernel_is_called_directly_after_its_first_run() -> None:
    kernel = lambda x: [-v for v in x]  # noqa: E731
    null = NullPlugin("num.neg", answer=kernel)
    program = tj.jit(lambda x: -x, session=tj.Session(plugins=[null, NumericPlugin()]))
    assert program([1.0]) == [-1.0]
    bound = program.__tj__.last.compilation.program.function.__globals__
    assert bound["null_num_neg"] == null._run


def test_a_buffer_that_is_returned_again_is_found_when_every_run_is_verified() -> None:
    buffer = [0.0, 0.0]

    def kernel(x: list[float]) -> list[float]:
        buffer[:] = [-v for v in x]
        return buffer

    believed = jitted(lambda x: -x, "num.neg", kernel)
    verified = jitted(lambda x: -x, "num.neg", kernel, check=3)
    for program in (believed, verified):
        assert program([1.0, 2.0]) == [-1.0, -2.0]
    assert believed([1.0, 3.0]) == [-1.0, -3.0]
    with pytest.raises(PluginError, match="result 0 is in the memory of an earlier result"):
        verified([1.0, 3.0])


# ------------------------------------------------------------------------------- values


def test_values_are_compared_in_every_run_at_the_highest_level() -> None:
    def kernel(a: list[float], b: list[float]) -> list[float]:
        return [p * q if p < 2 else 0.0 for p, q in zip(a, b, strict=True)]

    for check in (0, 1, 2, "sample"):
        wrong = jitted(lambda x: x * x + x, "num.mul", kernel, check)
        assert [wrong([1.0, v]) for v in (1.0, 3.0)] == [[2.0, 2.0], [2.0, 3.0]]
    program = jitted(lambda x: x * x + x, "num.mul", kernel, check=3)
    for _ in range(2):
        assert program([1.0, 1.0]) == [2.0, 2.0]
    message = "executor 'acme' .* result 0 has another value at 1, as its body computes"
    with pytest.raises(PluginError, match=message):
        program([1.0, 3.0])


def test_a_body_runs_on_copies() -> None:
    calls = []

    def fill(x: list[float], value: float) -> list[float]:
        calls.append(value)
        x[:] = [value] * len(x)
        return x

    right = jitted(lambda x: x.fill_(2.0), "num.fill_", fill, check=3)
    x = [1.0, 1.0]
    assert right(x) is x
    assert (x, calls) == ([2.0, 2.0], [2.0])
    half = jitted(lambda x: x.fill_(2.0), "num.fill_", lambda x, value: x, check=3)
    with pytest.raises(PluginError, match="has another value at 0"):
        half([1.0, 1.0])


def test_random_calls_run_once() -> None:
    kernel = lambda x: [0.5 for _ in x]  # noqa: E731
    assert jitted(lambda x: x.noise(), "num.noise", kernel, check=3)([1.0, 2.0]) == [0.5, 0.5]


# ------------------------------------------------------------------------------- one run


def problems(
    outputs: Any, result: Any, given: Any = (), effects: Effects | None = None
) -> list[str]:
    run = Run(given, RUNTIME, effects or Effects())
    return list(run.problems(outputs, result))


def test_structure_and_kinds_of_values_are_compared() -> None:
    number, thing = NumberProxy("n", "int"), OpaqueProxy("o", type="Generator")
    right = ([1.0, 2.0], [3, {"k": [1.0, 2.0]}], object())
    assert list(differences((X, [number, {"k": Y}], thing), right, RUNTIME)) == []
    assert list(differences((X, [number, {"k": Y}]), ([1.0, 2.0], 3), RUNTIME)) == [
        "it returned one value, a int, not 2 values"
    ]
    assert list(differences([number, {"k": Y}], [3, {"j": 0}], RUNTIME)) == [
        "it returned one value, a dict, not a dict of k"
    ]
    assert list(differences((number, thing), (0.5, None), RUNTIME)) == [
        "result 0 is a float, not a number of type int",
        "result 1 is None, not a Generator",
    ]
    assert list(differences(X, None, ())) == [], "no dialect knows values"


def test_named_tuples_are_tuples() -> None:
    from collections import namedtuple

    pair = namedtuple("pair", "a b")([1.0, 2.0], [3.0, 4.0])
    assert list(differences((X, Y), pair, RUNTIME)) == []


def test_memory_is_shared_as_declared() -> None:
    x, y = [1.0, 2.0], [3.0, 4.0]
    given = [(X, x), (Y, y)]
    view = Effects(aliases=(Alias(0, "arg", 1),))
    assert problems(X, y, given, view) == []
    assert problems(X, x, given, view) == [
        "result 0 is in the memory of its argument 'x', which the trace does not say"
    ]
    assert problems((X, Y), (z := [0.0, 0.0], z)) == [
        "result 1 is in the memory of result 0, which the trace does not say"
    ]
    both = Effects(aliases=(Alias(1, "out", 0),))
    assert problems((X, Y), (z, z), (), both) == []
    assert problems((X, Y), (x, x), given, both) == [
        f"result {i} is in the memory of its argument 'x', which the trace does not say"
        for i in (0, 1)
    ]
    viewed = Effects(aliases=(Alias(1, "out", 0), Alias(0, "arg", 0)))
    assert problems((X, Y), (x, x), given, viewed) == []


def test_writes_are_those_declared() -> None:
    x, y = [1.0, 2.0], [3.0, 4.0]
    run = Run([(X, x), (Y, y)], RUNTIME, Effects(mutates=(0,)))
    x[0] = y[0] = 9.0
    assert list(run.problems(None, None)) == [
        "it wrote to argument 'y', which the trace does not say"
    ]


def test_values_that_differ_are_counted_as_results() -> None:
    number = NumberProxy("n", "int")
    assert list(unequal(([1.0, 2.0], 3), ([1.0, 2.5], 4), (X, number), RUNTIME)) == [
        "result 0 has another value at 1",
        "result 1 is 4, not 3",
    ]


# ------------------------------------------------------------------------------- regions


def fused(change: Callable[[Callable[..., Any]], Callable[..., Any]], check: int = 2) -> Any:
    """``-x * x`` in one region, whose function ``change`` replaces."""
    session = tj.Session(
        plugins=[LoopPlugin(change=change), NumericPlugin()],
        overrides={"check": check, "strict": False},
    )
    return tj.jit(lambda x: -x * x, session=session)


def test_a_region_that_returns_its_input_falls_back() -> None:
    program = fused(lambda right: lambda x: (x,))
    message = (
        r"^tj: executor 'loop' of plugin 'loop' \(inline\) failed on region .* result 0 is in the"
    )
    with pytest.warns(tj.TjWarning, match=message):
        assert program([1.0, 2.0]) == [-1.0, -4.0]
    assert program([1.0, 3.0]) == [-1.0, -9.0]


@pytest.mark.parametrize("check", [0, 3])
def test_a_region_that_returns_a_buffer_again_is_found_before_it_does_harm(check: int) -> None:
    buffer = [0.0, 0.0]

    def change(right: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: list[float]) -> Any:
            buffer[:] = right(x)[0]
            return [buffer]

        return run

    program = fused(change, check)
    with pytest.warns(tj.TjWarning, match="result 0 is in the same memory in every run"):
        first = program([1.0, 2.0])
    assert program([3.0, 4.0]) == [-9.0, -16.0]
    assert first == [-1.0, -4.0]


def test_a_region_that_fails_where_it_stands_again_fails_everywhere() -> None:
    runs = iter(range(99))

    def change(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: right(x) if next(runs) < 3 else None

    plugins = [LoopPlugin(change=change), NumericPlugin()]
    session = tj.Session(plugins=plugins, overrides={"check": 0, "strict": False})
    first = tj.jit(lambda x: -x * x, session=session)
    again = tj.jit(lambda x: -x * x, session=session)
    for _ in range(2):  # a new function runs twice, and is called directly then
        assert first([1.0]) == [-1.0]
    with pytest.warns(tj.TjWarning, match="it returned one value, a NoneType, not 1 values"):
        assert again([2.0]) == [-4.0]
    assert first([3.0]) == [-9.0]


class DecliningPlugin(LoopPlugin):
    """`LoopPlugin`, which declines all regions when it is to compile them."""

    def fuse(self, region: FusionRegion) -> Any:
        """Decline ``region``."""
        self.compiled.append(region)
        return Decline("planted")


@pytest.mark.parametrize("strict", [False, True])
def test_a_region_that_is_declined_runs_without_the_executor_and_a_warning(strict: bool) -> None:
    loop = DecliningPlugin()
    overrides = {"check": 2, "strict": strict}
    session = tj.Session(plugins=[loop, NumericPlugin()], overrides=overrides)
    program = tj.jit(lambda x: -x * x, session=session)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert program([1.0, 2.0]) == [-1.0, -4.0]
        assert program([3.0, 4.0]) == [-9.0, -16.0]
    assert len(loop.compiled) == 1


@pytest.mark.parametrize("result", [[-1.0, -4.0], None])
def test_a_region_that_writes_to_its_input_is_an_error(result: list[float] | None) -> None:
    def faulty(x: list[float]) -> Any:
        x[0] = 7.0
        return (result,)

    with pytest.raises(
        PluginError,
        match=r"executor 'loop' of plugin 'loop' .* ran region .* wrote to argument 'x'",
    ):
        fused(lambda right: faulty)([1.0, 2.0])


def test_what_raises_without_the_executor_too_is_no_fault_of_it() -> None:
    def inverse(right: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: list[float]) -> Any:
            try:
                return right(x)
            except ZeroDivisionError as error:
                raise RuntimeError("somewhere in a loop") from error

        return run

    session = tj.Session(
        plugins=[LoopPlugin(change=inverse), NumericPlugin()], overrides={"check": 1}
    )
    program = tj.jit(lambda x: -x.reciprocal(), session=session)
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        program([0.0])
    assert program([2.0]) == [-0.5]
    (region,) = tj.explain(program).regions
    assert region.kernel.failure is None


def test_values_of_regions_are_compared_in_every_run() -> None:
    def change(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: ([max(v, -8.0) for v in right(x)[0]],)

    program, believed = fused(change, check=3), fused(change)
    for _ in range(2):
        assert program([1.0, 2.0]) == believed([1.0, 2.0]) == [-1.0, -4.0]
    assert believed([1.0, 3.0]) == [-1.0, -8.0]
    message = (
        "executor 'loop' .* ran region .*, and result 0 has another value at 1, as its operations"
    )
    with pytest.raises(PluginError, match=message):
        program([1.0, 3.0])


@pytest.mark.parametrize(("error", "found"), [(1.5e-12, False), (2.5e-12, True)])
def test_each_of_the_calls_of_a_region_may_round(error: float, found: bool) -> None:
    program = fused(lambda right: lambda x: ([v + error for v in right(x)[0]],), check=3)
    with pytest.raises(PluginError, match="another value") if found else nullcontext():
        assert program([0.0]) == [error]
