"""Programs whose writes to Python objects are read by code that runs in the graph."""

from __future__ import annotations

import datetime
import os
import random
import sys
import threading
import time
import uuid
import warnings
from typing import Any

import pytest
import tj_core as tj
import torch

pytestmark = pytest.mark.sampled(2)

NUMBER: Any = 1
LIST: list[Any] = [1]
LIBRARY = torch.library.Library("tj_pending", "DEF")


@torch.library.custom_op("tj_pending::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * NUMBER * LIST[0]


@torch.library.custom_op("tj_pending::by_device", mutates_args=())
def by_device(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@by_device.register_kernel("cpu")
def _(x: torch.Tensor) -> torch.Tensor:
    return x * LIST[0]


def kernel(x: torch.Tensor) -> torch.Tensor:
    return x * LIST[0]


LIBRARY.define("registered(Tensor x) -> Tensor")
LIBRARY.impl("registered", kernel, "CPU")
for name in ("scaled", "by_device", "registered"):
    torch.library.register_fake(f"tj_pending::{name}", torch.empty_like)
OPERATORS = (scaled, by_device, torch.ops.tj_pending.registered)


def observed(function: Any) -> list[Any]:
    global NUMBER
    NUMBER, LIST[:] = 1, [1]
    torch._dynamo.reset()
    return [[y.tolist() for y in function(torch.ones(2) * i)] for i in range(3)]


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_kernels_in_python_read_what_was_written_before(operator: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        LIST[0] = 2
        first = operator(x)
        LIST[0] = 3
        return first, operator(x)

    assert observed(tj.jit(program)) == observed(program)


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_kernels_read_globals() -> None:
    def program(x: torch.Tensor) -> Any:
        global NUMBER
        NUMBER = 2
        first = scaled(x)
        NUMBER = 3
        return first, scaled(x)

    assert observed(tj.jit(program)) == observed(program)


def test_kernels_that_read_nothing_that_is_written_are_captured() -> None:
    other = [0]

    def program(x: torch.Tensor) -> Any:
        other[0] = other[0] + 1
        return (scaled(x),)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert observed(tj.jit(program)) == [[[i, i]] for i in (0.0, 1.0, 2.0)]
    assert other == [3]


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_hooks_read_when_they_run() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: g * LIST[0])
        return y.sin()

    jitted = tj.jit(program)
    for i in range(4):
        LIST[0] = i
        found = []
        for function in (program, jitted):
            x = torch.ones(2, requires_grad=True)
            y = function(x).sum()
            LIST[0] = 5 + i
            y.backward()
            found.append(x.grad)
            LIST[0] = i
        assert torch.equal(*found)


def test_a_hook_that_reads_nothing_is_captured() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y, scale = x * 2, 3
        y.register_hook(lambda g: g * scale)
        return y.sin()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = []
        for function in (program, tj.jit(program)):
            x = torch.ones(2, requires_grad=True)
            function(x).sum().backward()
            found.append(x.grad)
    assert torch.equal(*found)


ANEW = {
    "time": lambda x: (x * 2, time.time_ns()),
    "time in a product": lambda x: (x.double() * time.time()).tolist(),
    "a date": lambda x: (x * 2, datetime.datetime.now()),
    "an identity": lambda x: (x * 2, uuid.uuid4()),
    "bytes of the system": lambda x: (x * 2, os.urandom(8)),
    "a random number": lambda x: (x * 2, random.random()),
    "a number of the system": lambda x: (x * 2, random.SystemRandom().random()),
}


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
@pytest.mark.parametrize("case", ANEW)
def test_what_answers_anew_is_asked_in_each_call(case: str) -> None:
    jitted, found = tj.jit(ANEW[case]), set()
    for _ in range(3):
        found.add(str(jitted(torch.ones(1))[-1]))
        time.sleep(0.002)
    assert len(found) == 3


SCALES = ("1", "3", "2")
STATES: dict[str, tuple[Any, Any]] = {
    "the environment": (
        lambda x: x * int(os.environ["SCALE_OF_TEST"]),
        lambda i: os.environ.__setitem__("SCALE_OF_TEST", SCALES[i]),
    ),
    "a default of the environment": (
        lambda x: x * int(os.getenv("SCALE_OF_TEST", "7")),
        lambda i: (
            os.environ.pop("SCALE_OF_TEST", None)
            if i == 1
            else os.environ.__setitem__("SCALE_OF_TEST", SCALES[i])
        ),
    ),
    "the arguments of the process": (
        lambda x: x * len(sys.argv),
        lambda i: sys.argv.__setitem__(slice(None), ["a"] * (i + 1)),
    ),
    "the folder": (
        lambda x: x * len(os.getcwd()),
        lambda i: os.chdir(("/", "/usr", "/usr/bin")[i]),
    ),
    "the name of the thread": (
        lambda x: x * len(threading.current_thread().name),
        lambda i: setattr(threading.current_thread(), "name", "t" * (i + 1)),
    ),
}


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
@pytest.mark.parametrize("case", STATES)
def test_the_state_of_the_process_is_asked_in_each_call(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALE_OF_TEST", "1")
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(threading.current_thread(), "name", "test")
    monkeypatch.chdir("/")
    program, change = STATES[case]
    jitted, x = tj.jit(program), torch.ones(2)
    for i in range(3):
        change(i)
        assert torch.equal(jitted(x), program(x))
