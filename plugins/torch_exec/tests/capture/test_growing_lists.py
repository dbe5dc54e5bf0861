"""Lists that a program adds to in each call: one program, whatever their length."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.internal import worker

X = torch.arange(3.0)
CALLS = 12
"""More calls than programs are compiled for values of one object."""


class Meter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []
        self.parts = [torch.nn.ReLU(), torch.nn.Sigmoid()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
            self.values.append(x)
        return x


class State:
    """Arguments of the programs: lists, one of which has two names, and a module."""

    def __init__(self) -> None:
        self.a: list[Any] = []
        self.b: list[Any] = [0, "first"]
        self.c = self.b
        self.history: dict[str, list[Any]] = {"loss": []}
        self.kept: dict[str, list[Any]] = defaultdict(list)
        self.line: deque[Any] = deque()
        self.window: deque[Any] = deque(maxlen=3)
        self.meter = Meter()


def a_number(s: State, x: torch.Tensor) -> Any:
    loss = (x * 2).sum()
    s.a.append(loss.item())
    return loss


def a_tensor(s: State, x: torch.Tensor) -> Any:
    loss = (x * 2).sum()
    s.history["loss"].append(loss.detach())
    s.kept["loss"].append(loss)
    return loss


def a_deque(s: State, x: torch.Tensor) -> Any:
    s.line.append(x + 1)
    s.line.extend((x, 2))
    return x * 2


def a_bounded_deque(s: State, x: torch.Tensor) -> Any:
    s.window.append(x + 1)
    s.window.extend([x, 2])
    return x * 2


def several(s: State, x: torch.Tensor) -> Any:
    s.a.extend([x, x + 1])
    s.a += (x + 2,)
    s.a.extend(x * i for i in range(3))
    s.a.extend({"k": x}.values())
    s.a.extend(map(torch.neg, (x, x)))
    s.a.extend(())
    return x * 2


def one_list(s: State, x: torch.Tensor) -> Any:
    s.b.append(x)
    s.c.append(x + 1)
    return s.b, s.b is s.c


def itself(s: State, x: torch.Tensor) -> Any:
    s.a.append(s.a)
    return [s.a, x], s.a


def one_in_another(s: State, x: torch.Tensor) -> Any:
    s.a.append(s.b)
    s.b.append([s.line])
    return x, [s.b, [s.a]]


def a_module(s: State, x: torch.Tensor) -> Any:
    return s.meter(x)


def replaced(s: State, x: torch.Tensor) -> Any:
    s.a.append(x)
    s.a, s.b = s.b, s.a
    s.a.append(x + 1)
    return s.a, s.b


def written(s: State, x: torch.Tensor) -> Any:
    y = x + 1
    s.a.append(y)
    s.a.append(y[:2])
    y.mul_(2)
    return y


def stopped(s: State, x: torch.Tensor) -> Any:
    def values() -> Iterator[Any]:
        yield x
        yield x + 1
        raise ValueError

    try:
        s.a.extend(values())
    except ValueError:
        return x * 2
    return x


def a_method(s: State, x: torch.Tensor) -> Any:
    add = s.a.append
    add(x + 1)
    return isinstance(s.a, list) and type(s.a) is list and hasattr(s.a, "append")


GROWING = (
    a_number,
    a_tensor,
    a_deque,
    a_bounded_deque,
    several,
    one_list,
    itself,
    one_in_another,
    a_module,
    written,
    stopped,
    a_method,
)


def last(s: State, x: torch.Tensor) -> Any:
    s.a.append(x + 1)
    return s.a[-1] * 2


def total(s: State, x: torch.Tensor) -> Any:
    s.a.append(x)
    return sum(s.a), s.a[-2:], s.a + s.b, [1].__add__(s.a), [*s.a]


def length(s: State, x: torch.Tensor) -> Any:
    s.a.append(x)
    return x * len(s.a), bool(s.b), 0 in s.b, s.b == [0]


def shortened(s: State, x: torch.Tensor) -> Any:
    s.line.append(x)
    if len(s.line) > 2:
        s.line.popleft()
    s.a.append(x)
    s.a.insert(0, 1)
    s.b.append(x)
    return s.b.pop()


def cleared(s: State, x: torch.Tensor) -> Any:
    s.a.append(x)
    s.a.clear()
    s.a.append(x + 1)
    s.b[:1] = [x, x]
    return x * 2


def twice(s: State, x: torch.Tensor) -> Any:
    s.b.extend(s.b)
    return x * 2


def walked(s: State, x: torch.Tensor) -> Any:
    for item in s.b:
        if len(s.b) < 6:
            s.b.append(item)
    ahead = iter(s.b)
    s.b.append(x)
    return next(ahead), x


def copied(s: State, x: torch.Tensor) -> Any:
    s.a.append(x)
    return list(s.a), s.a.copy(), tuple(s.a), f"{s.b}"


def same_line(s: State, x: torch.Tensor) -> Any:
    s.line.append(x)
    return [s.a, 1], s.line.maxlen


READING = (last, total, length, shortened, cleared, twice, walked, copied, replaced, same_line)


def plain(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """``value`` with tensors as tuples; a list inside of itself is a number."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.tolist(), value.requires_grad, value._version
    if isinstance(value, State):
        return {k: plain(v) for k, v in vars(value).items() if k != "meter"}, value.meter.values
    if isinstance(value, dict):
        return {key: plain(item, seen) for key, item in value.items()}
    if isinstance(value, list | tuple | deque):
        if id(value) in seen:
            return seen.index(id(value))
        return type(value), [plain(item, (*seen, id(value))) for item in value]
    return value


def outcome(f: Callable[..., Any], calls: int = CALLS, given: State | None = None) -> Any:
    given = given or State()
    results = [plain(f(given, X.clone())) for _ in range(calls)]
    values = [plain(v) for v in given.meter.values]
    given.meter.values = values
    return results, plain(given)


@pytest.mark.parametrize("program", GROWING, ids=lambda f: f.__name__)
def test_one_program_for_all_lengths(program: Callable[..., Any]) -> None:
    f = tj.jit(program)
    assert outcome(f) == outcome(program)
    found = tj.stats(f)
    assert found.entries <= 2, "the second one is for a key that a dict has got"
    assert not found.fallbacks


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
@pytest.mark.parametrize("program", READING, ids=lambda f: f.__name__)
def test_items_that_are_read(program: Callable[..., Any]) -> None:
    f = tj.jit(program)
    assert outcome(f, 4) == outcome(program, 4)


def test_objects_are_the_ones_that_the_program_has() -> None:
    def program(s: State, x: torch.Tensor) -> Any:
        y = x + 1
        s.a.append(y)
        s.a.append(s.history)
        return y, s.a

    f, s = tj.jit(program), State()
    kept = s.a
    for _ in range(3):
        y, found = f(s, X)
        assert found is s.a is kept
        assert kept[-2] is y
        assert kept[-1] is s.history


def test_lists_that_the_caller_changes() -> None:
    def program(s: State, x: torch.Tensor) -> Any:
        s.a.append(x)
        s.b.append(x + 1)
        return x * 2

    def run(f: Callable[..., Any]) -> Any:
        s, found = State(), []

        def call() -> None:
            found.append((plain(f(s, X)), plain(s.a), plain(s.b), plain(s.c)))

        call()
        s.a.clear()
        call()
        s.a = [1, object, torch.ones(2, 2)][:2]
        call()
        s.b = []
        call()
        s.a = s.b
        call()
        call()
        s.a = deque([1], maxlen=2)
        call()
        s.a = []
        call()
        return found

    f = tj.jit(program)
    assert run(f) == run(program)
    assert tj.stats(f).entries <= 4, "two lists, one list, and a deque"


def test_one_of_two_lists_is_read() -> None:
    def program(a: list[Any], b: list[Any], x: torch.Tensor) -> Any:
        a.append(x)
        return x * len(b)

    def run(f: Callable[..., Any]) -> Any:
        a, b = [1], [2]
        calls = [(a, b), (a, b), (a, a), (b, b), (a, b)]
        return [(plain(f(*given, X)), plain(a), plain(b)) for given in calls]

    assert run(tj.jit(program)) == run(program)


def test_a_deque_gets_a_bound() -> None:
    def program(line: Any, x: torch.Tensor) -> Any:
        line.append(3)
        return x * len(line)

    f = tj.jit(program)
    assert f(deque([1, 2]), X).tolist() == [0, 3, 6]
    with pytest.warns(tj.TjWarning, match="a deque with a maxlen"):
        assert f(deque([1, 2], maxlen=2), X).tolist() == [0, 2, 4]


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_a_list_that_is_used_by_what_it_is_extended_by() -> None:
    def reading(s: State, x: torch.Tensor) -> Any:
        s.b.extend(x * len(s.b) for _ in range(2))
        return x + 1

    def adding(s: State, x: torch.Tensor) -> Any:
        def values() -> Iterator[Any]:
            for i in range(2):
                s.b.append(i)
                yield x + i

        s.b.extend(values())
        return x + 1

    for program in (reading, adding):
        assert outcome(tj.jit(program), 3) == outcome(program, 3)


def test_graph_breaks() -> None:
    def program(s: State, x: torch.Tensor) -> Any:
        s.a.append(x + 1)
        torch._dynamo.graph_break()
        s.a.append(x + 2)
        s.line.append(len(s.c))
        return x * 2

    f = tj.jit(program)
    with pytest.warns(tj.TjWarning, match="graph break"):
        found = outcome(f)
    assert found == outcome(program)
    assert len(tj.programs(f)) == 2


def test_errors_after_an_addition() -> None:
    def program(s: State, x: torch.Tensor, i: torch.Tensor) -> Any:
        s.a.append(x + 1)
        y = x[i]
        if x.shape[0] == 2:
            raise ValueError("two")
        return y

    def run(f: Callable[..., Any]) -> Any:
        s, found, good, bad = State(), [], torch.tensor([0]), torch.tensor([9])
        for x, i in ((X, good), (X, good), (X, bad), (X[:2], good), (X, good), (X, bad)):
            try:
                found.append(plain(f(s, x, i)))
            except Exception as error:
                found.append((type(error), str(error)))
            found.append(plain(s.a))
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)  # the program raises
        assert run(tj.jit(program)) == run(program)


def test_gradients_and_hooks() -> None:
    def run(jit: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        net, seen = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), list[Any]()
        for part in net:
            part.register_forward_hook(lambda module, args, result: seen.append(result.detach()))
        losses: list[torch.Tensor] = []

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = net(x).square().sum()
            losses.append(loss)
            return loss

        f = jit(step)
        for i in range(CALLS):
            f(X + i).backward()
        if jit is tj.jit:
            assert tj.stats(f).entries == 1
        return plain(seen), plain(losses), [p.grad.tolist() for p in net.parameters()]

    assert run(tj.jit) == run(lambda f: f)


def test_inside_of_transforms_and_branches() -> None:
    def program(s: State, x: torch.Tensor) -> Any:
        y = torch.vmap(lambda row: row * s.b[0])(x)
        s.a.append(y)
        s.line.append(1)
        return torch.cond(y.sum() > 0, lambda z: z * s.b[0], lambda z: z + 1, (y,))

    f = tj.jit(program)
    assert outcome(f) == outcome(program)
    assert tj.stats(f).entries == 1


def test_a_list_that_grows_while_a_program_is_compiled_behind() -> None:
    def program(losses: list[Any], x: torch.Tensor) -> Any:
        losses.append((x * 2).sum().item())
        return x + 1

    f = tj.jit(program, on_miss="eager")
    losses: list[Any] = []
    counted = itertools.count()
    for calls in counted:
        f(losses, X)
        if tj.stats(f).hits or calls > 200_000:
            break
    assert worker().wait(120)
    f(losses, X)
    assert tj.stats(f).hits
    assert losses == [6.0] * (next(counted) + 1)
    assert not tj.stats(f).fallbacks


def test_a_length_that_changes_while_a_program_is_compiled_behind() -> None:
    def program(losses: list[Any], x: torch.Tensor) -> Any:
        losses.append(1)
        return x * len(losses)

    f, losses = tj.jit(program, on_miss="eager"), list[Any]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for calls in range(1, 300):
            assert torch.equal(f(losses, X), X * calls)
        assert worker().wait(120)
        assert torch.equal(f(copy.copy(losses), X), X * 300)
