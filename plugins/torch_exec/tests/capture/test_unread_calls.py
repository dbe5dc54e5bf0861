"""Calls whose results nothing reads: they raise where PyTorch has no kernel, as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from torch._dynamo.exc import TorchRuntimeError

pytestmark = [
    pytest.mark.usefixtures("lenient"),
    # Some fake kernels refuse what nothing reads: the graph breaks there (2.15).
    pytest.mark.filterwarnings("ignore::tj_core.TjWarning"),
]

Program = Callable[[torch.Tensor], torch.Tensor]


def read_by_another(x: torch.Tensor) -> torch.Tensor:
    y = F.gelu(x.clone(), approximate="tanh")
    z = y * 2
    z.add_(1)
    return x + 1


def of_a_method(x: torch.Tensor) -> torch.Tensor:
    x[0].log_softmax(-1)
    return x + 1


def in_a_part(x: torch.Tensor) -> torch.Tensor:
    y = torch.linalg.norm(x) if x.is_floating_point() else torch.special.entr(x)
    F.softshrink(y.to(x.dtype))
    return x + 1


PROGRAMS = {f.__name__: f for f in (read_by_another, of_a_method, in_a_part)}


def outcome(f: Program, x: torch.Tensor) -> torch.Tensor | tuple[type, str]:
    try:
        return f(x)
    except Exception as error:  # whatever eager raises
        return type(error), str(error).partition("\n")[0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("way", ["jit", "backend"])
def test_calls_raise_as_in_eager(name: str, way: str, dtype: torch.dtype) -> None:
    f = PROGRAMS[name]
    jitted = tj.jit(f) if way == "jit" else torch.compile(f, backend="tj")
    x = torch.ones(3, 4, dtype=dtype)
    expected = outcome(f, x)
    for _ in range(2):
        found = outcome(jitted, x)
        if isinstance(expected, torch.Tensor):
            assert isinstance(found, torch.Tensor)
            torch.testing.assert_close(found, expected)
        else:
            # Where fake kernels refuse a call, `torch.compile` has an error of its own.
            own = way == "backend" and isinstance(found, tuple) and found[0] is TorchRuntimeError
            assert own or found == expected


def test_some_of_these_raise() -> None:
    raised = [outcome(f, torch.ones(3, 4, dtype=torch.uint8)) for f in PROGRAMS.values()]
    assert [r[0] for r in raised if isinstance(r, tuple)] == [NotImplementedError] * 3


def test_trials_draw_no_random_numbers() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        F.dropout(x.half(), 0.5)
        return x + torch.rand(3)

    found = []
    for g in (f, tj.jit(f)):
        torch.manual_seed(0)
        found.append((g(torch.ones(3)), torch.rand(2)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_operators_of_others_are_not_tried() -> None:
    seen: list[torch.dtype] = []

    @torch.library.custom_op("tests_unread::seen", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        return x.clone()

    noted.register_fake(torch.empty_like)

    def f(x: torch.Tensor) -> torch.Tensor:
        noted(x)
        return x + 1

    x = torch.ones(3, dtype=torch.int32)
    f(x)
    expected = len(seen)
    tj.jit(f)(x)
    assert len(seen) <= 2 * expected


def test_a_size_that_is_a_number_by_now_is_not_tried() -> None:
    linear = torch.nn.Linear(4, 4)

    @tj.jit(dynamic=True, strict=True)
    def unread(x: torch.Tensor) -> torch.Tensor:
        y = linear(x)  # the symbols of a square matrix are 4 here
        x.gather(1, x.argsort(1))
        return y

    x = torch.randn(4, 4)
    torch.testing.assert_close(unread(x), linear(x))
