"""Python: kinds of callables, arguments and results, control flow, side effects."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import math
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tj_suites.composability.row import Jit, falls_back, works


def example() -> torch.Tensor:
    """``(2, 3)``, float32, from 0 to 5."""
    return torch.arange(6.0).reshape(2, 3)


def twice(f: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Call ``f`` twice: compiled, then from the cache."""
    return [f(*args, **kwargs), f(*args, **kwargs)]


def affine(x: torch.Tensor, scale: float = 2.0, *, shift: float = 0.0) -> torch.Tensor:
    """A function with parameters of each kind."""
    return x * scale + shift


class _Kinds:
    """A callable of each kind."""

    gain = 3.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain

    def method(self, x: torch.Tensor, bias: float = 1.0) -> torch.Tensor:
        return x * self.gain + bias

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.gain

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x - 1

    @property
    def doubled(self) -> float:
        return self.gain * 2


@works
def methods(jit: Jit) -> Any:
    """Bound methods, class methods, static methods."""
    kinds = _Kinds()
    found = [twice(jit(f), example()) for f in (kinds.method, _Kinds.of_class, kinds.static)]
    kinds.gain = 5.0
    return found, jit(kinds.method)(example(), bias=0.0)


@works
def method_decorator(jit: Jit) -> Any:
    """``@tj.jit`` on a method in a class body."""

    class Scaler:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @jit
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

        @staticmethod
        @jit
        def static(x: torch.Tensor) -> torch.Tensor:
            return x + 1

    one, two = Scaler(2.0), Scaler(3.0)
    return (
        one.method(example()),
        two.method(example()),
        Scaler.static(example()),
        one.method(example()),
    )


@works
def callable_objects(jit: Jit) -> Any:
    """Callable objects, ``functools.partial``, ``functools.wraps``, lambdas, builtins."""
    wrapped = functools.wraps(affine)(lambda *a, **k: affine(*a, **k) + 1)
    kinds = (_Kinds(), functools.partial(affine, scale=5.0), wrapped, lambda x: x.sin(), torch.sin)
    return [twice(jit(f), example()) for f in kinds]


@works
def closures(jit: Jit) -> Any:
    """Closures: read, rebound, written with ``nonlocal``."""
    gain, calls = 2.0, 0

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x * gain + calls

    g = jit(f)
    found = twice(g, example())
    gain = 3.0
    return found, g(example()), calls


@works
def call_forms(jit: Jit) -> Any:
    """Defaults, keyword-only and positional-only parameters, ``*args``, ``**kwargs``."""

    def f(
        x: torch.Tensor, /, y: float = 1.0, *rest: float, z: float = 2.0, **more: float
    ) -> torch.Tensor:
        return x * y + sum(rest) + z + sum(more.values())

    g = jit(f)
    calls: list[tuple[tuple[float, ...], dict[str, float]]] = [
        ((), {}),
        ((2.0,), {}),
        ((2.0, 3.0, 4.0), {}),
        ((), {"z": 5.0}),
        ((), {"y": 2.0, "a": 1.0}),
    ]
    found = [g(example(), *args, **kwargs) for args, kwargs in calls * 2]
    f.__kwdefaults__ = {"z": 7.0}
    found.append(g(example()))
    return found, [jit(affine)(x=example(), shift=1.0), jit(affine)(example(), 3.0)]


@works
def wrong_calls(jit: Jit) -> Any:
    """Calls with missing or unknown arguments."""
    found = []
    for args, kwargs in (((), {}), ((example(), 1.0, 2.0), {}), ((example(),), {"wrong": 1})):
        try:
            jit(affine)(*args, **kwargs)
        except TypeError as error:
            found.append(str(error).partition("() ")[2])
    return found, jit(affine)(example())


@dataclasses.dataclass
class _Pair:
    first: torch.Tensor
    second: Any = None

    def total(self) -> Any:
        """Sum of both."""
        return self.first + self.second


class _Point(NamedTuple):
    x: torch.Tensor
    y: Any = None


class _Color(enum.Enum):
    RED = 1
    BLUE = 2


@works
def structures(jit: Jit) -> Any:
    """Dataclasses, named tuples, dicts, lists, None, enums as arguments and results."""

    def f(pair: _Pair, point: _Point, table: dict[Any, Any], nothing: Any, color: Any) -> Any:
        y = pair.total() + point.x + table["a"][0]
        if nothing is None and color is _Color.RED:
            y = y * 2
        return _Point(y, None), {"pair": vars(_Pair(y, [y, None])), 2: (y, color)}, None, [], ()

    g = jit(f)
    x = example()
    table = {"a": [x], "b": None}
    found = [
        g(_Pair(x, x), _Point(x), table, None, _Color.RED),
        g(_Pair(x, x), _Point(x), table, 1, _Color.RED),
        g(_Pair(x, x + 1), _Point(x), table, None, _Color.BLUE),
        g(_Pair(x, x), _Point(x), table, None, _Color.RED),
    ]
    defaults = jit(lambda x: collections.defaultdict(list, a=[x + 1]))
    ordered = jit(lambda d: collections.OrderedDict(b=d["a"] + 1))
    return found, dict(defaults(x)), ordered(collections.OrderedDict(a=x))


@works
def mutated_arguments(jit: Jit) -> Any:
    """Lists, dicts and objects of the caller that the program changes."""

    def f(x: torch.Tensor, items: list[Any], table: dict[str, Any], pair: _Pair) -> torch.Tensor:
        y = x * 2
        items.append(y)
        table["last"] = y
        table.pop("old", None)
        pair.second = y + 1
        x.add_(1)
        return y

    g = jit(f)
    items: list[Any] = []
    x, table, pair = example(), {"old": 1}, _Pair(example())
    return [g(x, items, table, pair) for _ in range(3)], x, items, table, vars(pair)


@works
def generators(jit: Jit) -> Any:
    """Generators consumed inside of the program."""

    def parts(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for i in range(3):
            yield x * i

    def f(x: torch.Tensor) -> torch.Tensor | int:
        return sum(parts(x)) + sum(p.sum() for p in parts(x))

    return twice(jit(f), example())


@falls_back("a generator runs as it is asked for values", "no single call to compile")
def generator_functions(jit: Jit) -> Any:
    """A generator function, jitted."""

    def f(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for i in range(3):
            yield x * i

    g = jit(f)
    return [list(g(example())), list(g(example()))]


@falls_back("the branch depends on data", "graph break")
def item_branches(jit: Jit) -> Any:
    """Branches on a tensor's value, ``.item()``, ``bool(tensor)``."""

    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0:
            return x * 2
        return x - 1

    g = jit(f)
    return g(example()), g(-example()), g(example())


@works
def item_values(jit: Jit) -> Any:
    """``.item()`` and ``.tolist()`` whose values are computed with or returned."""

    def f(x: torch.Tensor) -> Any:
        return x * x.sum().item(), x.max().item(), x.int()[0].tolist()

    g = jit(f)
    return g(example()), g(example() + 1), g(example())


@works
def data_dependent_sizes(jit: Jit) -> Any:
    """Results whose size depends on data: ``nonzero``, boolean masks, ``unique``."""

    def f(x: torch.Tensor) -> Any:
        return x.nonzero(), x[x > 1] * 2, torch.unique(x)

    g = jit(f)
    return g(example()), g(example() * 2 - 3), g(example())


@works
def exceptions(jit: Jit) -> Any:
    """``try`` and ``except`` in the program, and what it raises itself."""

    def caught(x: torch.Tensor, table: dict[str, float]) -> torch.Tensor:
        try:
            return x * table["a"]
        except KeyError:
            return x - 1
        finally:
            x = x + 1

    def raising(x: torch.Tensor, bad: bool) -> torch.Tensor:
        if bad:
            raise ValueError(f"bad {x.shape}")
        return x + 1

    g, h = jit(caught), jit(raising)
    found: list[Any] = [g(example(), {}), g(example(), {"a": 2.0}), h(example(), False)]
    for _ in range(2):
        try:
            h(example(), True)
        except ValueError as error:
            found.append((type(error).__name__, str(error), error.__cause__, error.__context__))
    return found, h(example(), False)


@works
def pytorchs_errors(jit: Jit) -> Any:
    """Errors that PyTorch raises in the program: their type and message."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + 1) @ y

    g = jit(f)
    found = [g(example(), example().T)]
    for _ in range(2):
        try:
            g(example(), example())
        except RuntimeError as error:
            found.append((str(error), error.__cause__, error.__context__))
    return found, g(example(), example().T)


class _Doubling:
    """A context manager that a program enters."""

    depth = 0

    def __enter__(self) -> float:
        _Doubling.depth += 1
        return 2.0

    def __exit__(self, *error: object) -> None:
        _Doubling.depth -= 1


@works
def context_managers(jit: Jit) -> Any:
    """The user's own context managers, ``contextlib`` included."""

    @contextlib.contextmanager
    def scaled(value: float) -> Iterator[float]:
        yield value * 2

    def f(x: torch.Tensor) -> torch.Tensor:
        with _Doubling() as k, contextlib.nullcontext(), scaled(3.0) as s:
            return x * k * s + _Doubling.depth

    return twice(jit(f), example()), _Doubling.depth


@works
def classes_inside(jit: Jit) -> Any:
    """Objects made in the program, properties, ``__getattr__``, ``super``, recursion, ``match``."""

    class Child(_Kinds):
        def __init__(self, gain: float) -> None:
            self.gain = gain

        def __getattr__(self, name: str) -> float:
            if name == "extra":
                return 7.0
            raise AttributeError(name)

        def method(self, x: torch.Tensor, bias: float = 1.0) -> torch.Tensor:
            return super().method(x, bias) + self.doubled + self.extra

    def factorial(x: torch.Tensor, n: int) -> torch.Tensor:
        return x if n == 0 else factorial(x, n - 1) * n

    def f(x: torch.Tensor, kind: Any) -> torch.Tensor:
        match kind:
            case int():
                x = x + kind
            case {"a": value}:
                x = x - value
        return Child(2.0).method(x) + factorial(x, 4)

    g = jit(f)
    return g(example(), 1), g(example(), {"a": 3.0}), g(example(), 1)


_SCALE = 2.0
_HELPER = types.SimpleNamespace(apply=lambda x: x + 1)


def _helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@works
def replaced_functions(jit: Jit) -> Any:
    """Global values, functions, attributes of Python modules, replaced after compilation."""

    def f(x: torch.Tensor) -> Any:
        return _helper(x) * _SCALE + _HELPER.apply(x) + math.tau

    g = jit(f)
    found = [g(example())]
    before = {name: globals()[name] for name in ("_SCALE", "_helper")}
    tau, apply = math.tau, _HELPER.apply
    try:
        globals()["_SCALE"] = 5.0
        found.append(g(example()))
        globals()["_helper"] = lambda x: x - 1
        found.append(g(example()))
        math.tau = 1.0  # type: ignore[misc]
        found.append(g(example()))
        _HELPER.apply = lambda x: x - 5
        found.append(g(example()))
    finally:
        globals().update(before)
        math.tau, _HELPER.apply = tau, apply  # type: ignore[misc]
    return found, g(example())


@works
def replaced_class_members(jit: Jit) -> Any:
    """Methods and properties of plain classes, replaced after compilation."""

    class Base:
        def base(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @property
        def gain(self) -> float:
            return 2.0

        @staticmethod
        def static(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @classmethod
        def of_class(cls, x: torch.Tensor) -> torch.Tensor:
            return x * 3

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x - 4

    class Child(Base):
        def base(self, x: torch.Tensor) -> torch.Tensor:
            return super().base(x) * 2

    child = Child()

    def f(x: torch.Tensor) -> Any:
        return child.base(x) * child.gain, child.static(x), Child.of_class(x), child(x)

    g = jit(f)
    found = twice(g, example())
    Base.base = lambda self, x: x + 10  # type: ignore[method-assign]
    found.append(g(example()))
    Child.base = lambda self, x: x + 100  # type: ignore[method-assign]
    found.append(g(example()))
    Base.gain = property(lambda self: 7.0)  # type: ignore[method-assign,assignment]
    found.append(g(example()))
    Base.static = staticmethod(lambda x: x * 20)  # type: ignore[method-assign]
    found.append(g(example()))
    Base.of_class = classmethod(lambda cls, x: x * 30)  # type: ignore[method-assign,assignment]
    found.append(g(example()))
    Base.__call__ = lambda self, x: x - 40  # type: ignore[method-assign]
    found.append(g(example()))
    Child.of_class = classmethod(lambda cls, x: x * 300)  # type: ignore[method-assign,assignment]
    return found, g(example())
