"""Handlers of tensor subclasses that count, or keep lists: they run as often as in eager.

So no program is compiled whose operations write anything beside tensors; and a capture, which runs
them on tensors of its own, leaves nothing behind.
"""

from __future__ import annotations

import gc
import warnings
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_suites.subclasses.kinds import Wrapper
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.checkpoint import checkpoint

TOTAL = 0
BY_NAME: dict[Any, Any] = {}
LATEST: Any = deque(maxlen=4)


class Log:
    """An object that handlers write to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.count += 1


LOG = Log()


class Held(Wrapper):
    """Wrapper of one tensor; its handler calls ``note``, then runs the operator on that tensor."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, cls)]
        cls.note(str(func), tensors)
        plain = pytree.tree_map_only(cls, lambda t: t.held, (args, kwargs or {}))
        result = pytree.tree_map_only(torch.Tensor, cls, func(*plain[0], **plain[1]))
        return return_and_correct_aliasing(func, args, kwargs or {}, result)

    @classmethod
    def note(cls, name: str, tensors: Any) -> None:
        pass


class CountsOnClass(Held):
    calls = 0

    @classmethod
    def note(cls, name: str, tensors: Any) -> None:
        cls.calls += 1


class ListsOnClass(Held):
    names: list[str] = []  # noqa: RUF012

    @classmethod
    def note(cls, name: str, tensors: Any) -> None:
        cls.names.append(name)


class CountsInModule(Held):
    @classmethod
    def note(cls, name: str, tensors: Any) -> None:
        global TOTAL
        TOTAL += 1
        LATEST.append(name)


class ListsInDict(Held):
    @classmethod
    def note(cls, name: str, tensors: Any) -> None:
        BY_NAME.setdefault(name, []).append(len(tensors))


def helper(name: str) -> None:
    LOG.add(name)


class WritesToObject(Held):
    @classmethod
    def note(cls, name: str, tensors: Any) -> None:
        helper(name)


def closing() -> Any:
    found: Any = Counter()
    latest = None

    class InClosure(Held):
        @classmethod
        def note(cls, name: str, tensors: Any) -> None:
            nonlocal latest
            latest = name
            found[name] += 1

        @staticmethod
        def seen() -> Any:
            return dict(found), latest

        @staticmethod
        def reset() -> None:
            nonlocal latest
            found.clear()
            latest = None

    return InClosure


InClosure = closing()


class OnTensor(Held):
    """Each tensor counts the operations on it."""

    def __init__(self, held: torch.Tensor) -> None:
        super().__init__(held)
        self.uses = 0

    @classmethod
    def note(cls, name: str, tensors: Any) -> None:
        for t in tensors:
            t.uses += 1


class Functions(Held):
    """Counts functions, before autograd."""

    calls: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})


class Plain(torch.Tensor):
    """Counts functions, and holds nothing."""

    calls: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})


KINDS = [
    CountsOnClass,
    ListsOnClass,
    CountsInModule,
    ListsInDict,
    WritesToObject,
    InClosure,
    OnTensor,
    Functions,
    Plain,
]


def broken(x: Any) -> Any:
    y = x * 2
    torch._dynamo.graph_break()
    return y.sin()


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "operators": lambda x: (x * 2).sin() + 1,
    "a view": lambda x: x.t() * 2,
    "a write": lambda x: (x * 2).mul_(x),
    "a checkpoint": lambda x: checkpoint(lambda y: (y * y).cos(), x, use_reentrant=False),
    "a graph break": broken,
    "a part": lambda x: getattr(x, "held", x) * 2,
}


def reset() -> None:
    global TOTAL
    TOTAL = CountsOnClass.calls = LOG.count = 0
    for kept in (ListsOnClass.names, Functions.calls, Plain.calls, BY_NAME, LATEST, LOG.lines):
        kept.clear()  # type: ignore[attr-defined]
    InClosure.reset()


def state(x: Any) -> Any:
    """Everything that the handlers have written."""
    lists = [ListsOnClass.names, Functions.calls, Plain.calls, list(LATEST), LOG.lines]
    numbers = [TOTAL, CountsOnClass.calls, LOG.count, vars(x).get("uses")]
    return [[*kept] for kept in lists], numbers, repr(BY_NAME), repr(InClosure.seen())


def observed(program: Any, kind: Any, grad: bool) -> Any:
    """Writes of a call and of its backward; and the values."""
    values = torch.linspace(-1, 1, 9).reshape(3, 3)
    x = values.as_subclass(kind) if kind is Plain else kind(values)
    x.requires_grad_(grad)
    reset()
    result = program(x)
    seen = [state(x), type(result)]
    if result.requires_grad:
        result.sum().backward()
        seen.append(state(x))
    with torch._C.DisableTorchFunctionSubclass():
        return seen, vars(result).get("uses"), getattr(result, "held", result).detach()


@pytest.mark.sampled(24)
@pytest.mark.parametrize("grad", [False, True], ids=["", "with_gradient"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_handlers_run_as_often_as_in_eager(
    jit: Any, alike: Any, kind: Any, name: str, grad: bool
) -> None:
    torch._dynamo.reset()
    program = PROGRAMS[name]
    eagers = observed(program, kind, grad)
    for _ in range(2):  # a second program finds calls that the session remembers
        jitted = jit(program)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", tj.TjWarning)
            for _ in range(3):
                alike(observed(jitted, kind, grad), eagers)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", KINDS[:6], ids=lambda kind: kind.__name__)
def test_a_warning_says_what_is_written(jit: Any, kind: Any) -> None:
    names = {
        CountsOnClass: "CountsOnClass.calls",
        ListsOnClass: "ListsOnClass.names",
        CountsInModule: "TOTAL|LATEST",
        ListsInDict: "BY_NAME",
        WritesToObject: "LOG",
        InClosure: "found|latest",
    }
    torch._dynamo.reset()
    with pytest.warns(tj.TjWarning, match=names[kind]) as warned:
        observed(jit(PROGRAMS["operators"]), kind, False)
    assert len(warned) == 1


def test_a_handler_that_only_reads_is_compiled(jit: Any) -> None:
    class Reads(Held):
        factor = 3
        table: dict[str, int] = {"aten.mul.Tensor": 1}  # noqa: RUF012

        @classmethod
        def note(cls, name: str, tensors: Any) -> None:
            assert cls.table.get(name, cls.factor)
            assert LOG.count == 0

    reset()
    program = PROGRAMS["operators"]
    jitted = jit(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(observed(jitted, Reads, True)[2], observed(program, Reads, True)[2])
    assert tj.stats(jitted).entries == 1
    assert not tj.stats(jitted).fallbacks


def test_what_the_collector_calls_writes_at_any_time(jit: Any) -> None:
    """As Hypothesis does, to know the collector's time: no handler has written it."""

    class Reads(Held):
        @classmethod
        def note(cls, name: str, tensors: Any) -> None:
            assert TOTAL >= 0
            gc.collect()

    def count(phase: str, info: Any) -> None:
        global TOTAL
        TOTAL += 1

    reset()
    jitted = jit(PROGRAMS["operators"])
    gc.callbacks.append(count)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            observed(jitted, Reads, False)
    finally:
        gc.callbacks.remove(count)
    assert not tj.stats(jitted).fallbacks
