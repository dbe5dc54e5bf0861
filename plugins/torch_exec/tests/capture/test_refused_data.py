"""Programs that raise for some data are captured whole, and raise as in eager."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from torch import Tensor

Program = Callable[[Tensor], Any]


def with_a_text(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError(f"negative: {x}")
    return x * 2


def negated(x: Tensor) -> Tensor:
    if not (x > 0).all():
        raise ValueError("not positive")
    return x * 2


def at_the_end(x: Tensor) -> Tensor:
    if (x > 0).all():
        return x * 2
    raise KeyError(tuple(x.shape))


def in_one_of_three(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("negative")
    elif x.sum() > 100:
        raise KeyError("large")
    else:
        y = x * 3
    return y + 1


def of_a_float(x: Tensor) -> Tensor:
    n = int(x[0].item() * 4)
    if n < 0:
        raise ValueError(f"{n}")
    return x * 2 + n


def of_an_integer(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    if n < 2:
        raise ValueError(f"{n}")
    return torch.zeros(int(n)) + x[0]


def always_one_of_two(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    if n > 2:
        raise KeyError(f"{n}")
    if n <= 2:
        raise ValueError(f"{n}")
    return x * 2


def of_an_integer_itself(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    if n:
        return x * n
    raise ValueError


def of_a_size(x: Tensor) -> Tensor:
    if len(x[x > 0]) < 3:
        raise ValueError("too few")
    return x * 2


def in_a_loop(x: Tensor) -> Tensor:
    for n in range(3):
        if (x < 0).any():
            texts = [str(number) for number in x.tolist()]
            raise RuntimeError(f"{n}" + " ".join(texts))
        x = x * 1.5
    return x


def one_of_two_conditions(x: Tensor) -> Tensor:
    if torch.isnan(x).any() or (x < 0).any():
        raise ValueError("neither")
    return x * 2


def in_a_mode(x: Tensor) -> Tensor:
    with torch.no_grad():
        if x.min() < 0:
            raise ValueError("negative")
        y = x * 2
    return y


def after_a_draw(x: Tensor) -> Tensor:
    y = torch.rand(4)
    if x.min() < 0:
        raise ValueError(f"{y}")
    return x * torch.rand(4)


def in_a_function(x: Tensor) -> Tensor:
    def checked(x: Tensor) -> Tensor:
        if x.min() < 0:
            raise ValueError("negative")
        return x + 1

    return checked(x) * checked(x * 2)


def with_a_branch_inside(x: Tensor) -> Tensor:
    if x.min() < 0:
        message = "small" if x.sum() < -100 else "negative"
        raise ValueError(message)
    return x * 2


def from_another_error(x: Tensor) -> Tensor:
    if x.min() < 0:
        raise ValueError("negative") from KeyError("why")
    return x * 2


PROGRAMS: tuple[Program, ...] = (
    with_a_text,
    negated,
    at_the_end,
    in_one_of_three,
    of_a_float,
    of_an_integer,
    of_an_integer_itself,
    always_one_of_two,
    of_a_size,
    in_a_loop,
    one_of_two_conditions,
    in_a_mode,
    after_a_draw,
    in_a_function,
    with_a_branch_inside,
    from_another_error,
)

ARGUMENTS = (
    torch.tensor([1.0, 2.0, 3.0, 4.0]),
    torch.tensor([-1.0, -2.0, -3.0, -4.0]),
    torch.tensor([4.0, 3.0, 2.0, 1.0]),
    torch.tensor([-1.0, 2.0, 3.0, 4.0]),
    torch.tensor([100.0, 2.0, 3.0, 4.0]),
)


def outcome(f: Program, x: Tensor) -> tuple[Any, ...]:
    """The error of a call, its result, its argument afterwards, and the next random number."""
    torch.manual_seed(7)
    x = x.clone()
    try:
        found = f(x)
    except Exception as error:  # each is an outcome
        found = torch.tensor([])
        said = type(error), error.args, repr(error.__cause__)
    else:
        said = type(None), (), ""
    return said, found, x, torch.rand(())


def with_second(f: Callable[[Tensor, Tensor], Any], y: Tensor) -> Program:
    return lambda x: f(x, y)


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_it_is_captured_whole_and_raises_as_in_eager(f: Program) -> None:
    jitted = tj.jit(f)
    for x in ARGUMENTS:
        for mine, theirs in zip(outcome(jitted, x), outcome(f, x), strict=True):
            assert torch.equal(mine, theirs) if isinstance(mine, Tensor) else mine == theirs
    assert tj.stats(jitted).fallbacks == ()
    assert tj.stats(jitted).misses == 1


@pytest.mark.parametrize("f", PROGRAMS[:3], ids=lambda f: f.__name__)
def test_gradients(f: Program) -> None:
    jitted = tj.jit(f)
    found = []
    for function in (f, jitted):
        x = ARGUMENTS[0].clone().requires_grad_()
        (function(x * 1) ** 2).sum().backward()
        found.append(x.grad)
    assert found[0] is not None
    assert found[1] is not None
    assert torch.equal(found[0], found[1])


def test_a_program_that_handles_the_error_runs_as_it_is() -> None:
    def f(x: Tensor) -> Tensor:
        try:
            if x.sum() < 0:
                raise ValueError("negative")
            return x * 2
        except ValueError as error:
            return x * len(str(error))

    jitted = tj.jit(f)
    assert torch.equal(jitted(ARGUMENTS[0]), f(ARGUMENTS[0]))
    with pytest.warns(tj.TjWarning, match="some calls run in eager: it raises for some data"):
        assert torch.equal(jitted(ARGUMENTS[1]), f(ARGUMENTS[1]))
    assert tj.stats(jitted).misses == 1


def test_changes_of_objects_are_made_once() -> None:
    calls: list[int] = []

    def f(x: Tensor) -> Tensor:
        calls.append(len(calls))
        if x.sum() < 0:
            raise ValueError("negative")
        return x * 2

    jitted = tj.jit(f)
    for number, x in enumerate(ARGUMENTS[:3]):
        with (
            pytest.raises(ValueError, match="negative")
            if number == 1
            else warnings.catch_warnings()
        ):
            jitted(x)
        assert calls == list(range(number + 1))


def all_of_two_conditions(x: Tensor) -> Tensor:
    if x[0] < 0 and x[1] < 0:
        raise ValueError("both")
    return x * 2


def after_a_write(x: Tensor) -> Tensor:
    x.mul_(2)  # stays: nothing fuses here, so that the program has no functional form
    if x.min() < 0:
        raise ValueError("negative")
    return x + 1


def decides(x: Tensor) -> Tensor:
    if x.sum() < 0:
        return x * 3
    return x * 2


def ends_a_loop(x: Tensor) -> Tensor:
    while x.abs().sum() < 100:
        x = x * 2
    return x


def raises_both_ways(x: Tensor) -> Tensor:
    if x.sum() < 0:
        raise ValueError("negative")
    raise KeyError("positive")


OTHERS = (decides, ends_a_loop, raises_both_ways, all_of_two_conditions, after_a_write)


@pytest.mark.parametrize("f", OTHERS, ids=lambda f: f.__name__)
def test_other_branches_are_graph_breaks(f: Program) -> None:
    jitted = tj.jit(f, strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for x in ARGUMENTS:
            assert str(outcome(jitted, x)) == str(outcome(f, x))
    assert ["graph break" in f.reason for f in tj.stats(jitted).fallbacks] == [True]


def test_assertions_with_texts_that_are_computed() -> None:
    space: dict[str, Any] = {}  # pytest changes assertions in files of tests
    exec('def f(x):\n    assert x.sum() > 0, f"negative: {x}"\n    return x * 2', space)
    test_it_is_captured_whole_and_raises_as_in_eager(space["f"])


def test_many_calls_that_are_refused_lead_to_graph_breaks() -> None:
    """A program that handles an error in each call is captured in parts."""

    def f(x: Tensor) -> Tensor:
        try:
            if x.sum() < 0:
                raise ValueError
        except ValueError:
            x = x * 3
        return x * 2

    jitted = tj.jit(f, strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for x in itertools.islice(itertools.cycle(ARGUMENTS[:2]), 30):
            assert torch.equal(jitted(x), f(x))
    assert any("graph break" in f.reason for f in tj.stats(jitted).fallbacks)


def test_a_functional_program_raises_after_a_write() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        y.add_(x)
        z = torch.rand(4)
        if x.min() < 0:
            raise ValueError(f"{z}")
        y.mul_(2)
        if x.max() > 50:
            raise KeyError("large")
        return y + x * z

    jitted = tj.jit(f, plugins=("torch", "autograd"))
    for x in ARGUMENTS:
        found = []
        for function in (f, jitted):
            y = torch.ones(4)
            argument = x.clone().requires_grad_()
            found.append((outcome(with_second(function, y), argument), y, y._version))
        said = [re.sub("grad_fn=<.*?>", "grad_fn", str(each)) for each in found]
        assert said[0] == said[1]
    assert tj.stats(jitted).fallbacks == ()
