"""Regions that fail, and programs that have none: each runs as in eager."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import TjWarning
from tj_suites.fused import X, hold, regions

pytestmark = pytest.mark.sampled(10)


def test_parameters_in_inference(fusing: Any) -> None:
    """Their views require gradients in PyTorch, under ``no_grad`` too; nothing comes of that."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU())
    jitted, x = fusing(model), torch.randn(3, 8)
    with torch.no_grad():
        got = jitted(x)
        torch.testing.assert_close(got, model(x))
    assert (got.requires_grad, bool(regions(jitted))) == (False, True)


@pytest.mark.slow
def test_threads_compile_and_run(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp().sum(0) + 1

    jitted = fusing(f)
    inputs = [torch.randn(n, 3) for n in (2, 3, 4, 5)]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        found[i] = jitted(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, x in enumerate(inputs):
        torch.testing.assert_close(found[i], f(x))


def test_what_has_no_elements_runs_one_by_one(fusing: Any) -> None:
    """Inductor returns other strides then."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp() + 1

    hold(jitted := fusing(f), f, X(0, 4))
    assert regions(jitted) == []


def test_autocast_runs_one_by_one(fusing: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ w).relu() * 2

    hold(fusing(f), f, X(4, 4), X(4, 4))


@pytest.mark.slow
def test_torch_compile_in_the_same_process_keeps_working(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp().sum(-1) + 1

    x = torch.randn(6, 7)
    mine, theirs = fusing(f)(x), torch.compile(f, fullgraph=True)(x)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(fusing(lambda x: f(x) * 2)(x), f(x) * 2)


def test_disabled_it_leaves_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TJ_DISABLE", "inductor")

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp() + 1

    jitted = tj.jit(f, session=tj.Session(overrides={"check": 2}))
    jitted(torch.randn(3))
    assert (regions(jitted), "inductor" in str(tj.last_trace(jitted))) == ([], False)


def test_arguments_are_freed_as_a_region_goes(fusing: Any) -> None:
    """A value that only a region reads is freed inside of it, as eager frees it."""
    import weakref

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.sort(x * 2 + 1).values
        return (y * 2).exp() + 1

    jitted = fusing(f)
    x = torch.randn(100)
    torch.testing.assert_close(jitted(x), f(x))
    alive = weakref.ref(x)
    jitted(x)
    del x
    assert alive() is None


FAULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (lambda run: lambda box: 1 / 0, "ZeroDivisionError"),
    "wrong strides": (
        lambda run: lambda box: [run(box)[0].t().contiguous().t()],
        "strides",
    ),
    "wrong type": (lambda run: lambda box: [run(box)[0].double()], "dtype"),
    "wrong shape": (lambda run: lambda box: [run(box)[0][:1]], "shape"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_region_that_goes_wrong_is_survived(
    fault: str, fusing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tj_inductor.adapter import compiling, modules

    change, said = FAULTS[fault]
    compiled = compiling.compiled

    def broken(*args: Any, **kwargs: Any) -> Any:
        made = compiled(*args, **kwargs)
        return modules.Compiled(change(made.function), made.source, made.strides)

    monkeypatch.setattr(compiling, "compiled", broken)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp() + 1

    jitted, x = fusing(f, strict=False), torch.randn(3, 4)
    with pytest.warns(TjWarning, match=said) as found:
        torch.testing.assert_close(jitted(x), f(x))
    assert ["'inductor'" in str(warning.message) for warning in found] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(jitted(x), f(x))


def test_a_compiler_that_fails_is_survived(fusing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tj_inductor.adapter import compiling

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("there is no C++ compiler")

    monkeypatch.setattr(compiling, "compiled", broken)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp() + 1

    x = torch.randn(3, 4)
    with pytest.warns(TjWarning, match=r"no C\+\+ compiler"):
        torch.testing.assert_close(fusing(f, strict=False)(x), f(x))


@torch.library.custom_op("tj_tests::halved", mutates_args=())
def halved(x: torch.Tensor) -> torch.Tensor:
    """``x`` in bfloat16; the fake kernel says that it is in the type of ``x``."""
    return x.bfloat16()


@halved.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_with_another_type_than_its_fake_kernel_says(fusing: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (halved(x) * 2).exp() + 1

    jitted, x = fusing(f, strict=False), torch.randn(3, 4)
    with pytest.warns(TjWarning, match="its input 0 has dtype bf16, not f32"):
        assert torch.equal(jitted(x), f(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(jitted(x), f(x))
