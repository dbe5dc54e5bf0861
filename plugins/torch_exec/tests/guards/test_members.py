"""Classes that change after compilation, for all ways in which a program reads a member."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch

X = torch.arange(3.0)


def classes() -> tuple[type, type]:  # noqa: C901 - one short method for each kind
    """Make a class with a member of each kind, and a class that inherits all of them."""

    class Base:
        k = 3.0
        n = 2
        pair = (1.0, 2.0)
        weight = torch.ones(3)

        def __init__(self, a: float = 1.0) -> None:
            self.a = a

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x - 4

        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> float:
            return i * 2.0

        def __add__(self, x: Any) -> Any:
            return x + 5

        def __radd__(self, x: Any) -> Any:
            return x + 6

        def __bool__(self) -> bool:
            return True

        def __iter__(self) -> Iterator[float]:
            return iter([1.0, 2.0])

        def __contains__(self, i: int) -> bool:
            return True

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

        def __lt__(self, other: object) -> bool:
            return True

        def __getattr__(self, name: str) -> float:
            if name.startswith("z"):
                return 7.0
            raise AttributeError(name)

        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @property
        def gain(self) -> float:
            return 2.0

        @gain.setter
        def gain(self, value: float) -> None:
            self.set = value

        @staticmethod
        def static(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @classmethod
        def of_class(cls, x: torch.Tensor) -> torch.Tensor:
            return x * 3

    class Child(Base):
        pass

    return Base, Child


def value(result: Any) -> Callable[..., Any]:
    return lambda self, *rest: result


def attribute_or_none(owner: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * owner.optional
        except AttributeError:
            return x

    return f


def assigning(o: Any, name: str, read: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(x: torch.Tensor) -> torch.Tensor:
        setattr(o, name, 3.0)
        return x * getattr(o, read)

    return f


Times9 = lambda self, x: x * 9  # noqa: E731
MEMBERS: dict[str, tuple[Callable[[type, type, Any], Any], str, Any]] = {
    "call": (lambda B, C, o: lambda x: o(x), "__call__", Times9),
    "float": (lambda B, C, o: lambda x: x * o.k, "k", 30.0),
    "float of class": (lambda B, C, o: lambda x: x * C.k, "k", 30.0),
    "int": (lambda B, C, o: lambda x: x * o.n, "n", 5),
    "tuple": (lambda B, C, o: lambda x: x * o.pair[0], "pair", (5.0,)),
    "tensor": (lambda B, C, o: lambda x: x * o.weight, "weight", torch.zeros(3)),
    "tensor of class": (lambda B, C, o: lambda x: x * C.weight, "weight", torch.zeros(3)),
    "init": (
        lambda B, C, o: lambda x: x * C(2.0).a,
        "__init__",
        lambda self, a: setattr(self, "a", a * 9),
    ),
    "method of new": (lambda B, C, o: lambda x: C(2.0).method(x), "method", Times9),
    "float of new": (lambda B, C, o: lambda x: C(2.0).k * x, "k", 9.0),
    "property of new": (lambda B, C, o: lambda x: C().gain * x, "gain", property(value(9.0))),
    "len": (lambda B, C, o: lambda x: x * len(o), "__len__", value(7)),
    "item": (lambda B, C, o: lambda x: x * o[3], "__getitem__", value(7)),
    "add": (lambda B, C, o: lambda x: o + 3 + x, "__add__", value(7)),
    "radd": (lambda B, C, o: lambda x: 3 + o + x, "__radd__", value(7)),
    "bool": (lambda B, C, o: lambda x: x if o else x + 1, "__bool__", value(False)),
    "iter": (lambda B, C, o: lambda x: x + sum(o), "__iter__", lambda self: iter([9.0])),
    "contains": (lambda B, C, o: lambda x: x if 3 in o else x + 1, "__contains__", value(False)),
    "equal": (lambda B, C, o: lambda x: x if o == 3 else x + 1, "__eq__", value(False)),
    "less": (lambda B, C, o: lambda x: x if o < 3 else x + 1, "__lt__", value(False)),
    "method": (lambda B, C, o: lambda x: o.method(x), "method", Times9),
    "method, then property": (
        lambda B, C, o: lambda x: o.method(x),
        "method",
        property(lambda self: lambda x: x * 9),
    ),
    "unbound method": (lambda B, C, o: lambda x: B.method(o, x), "method", Times9),
    "method of type": (lambda B, C, o: lambda x: type(o).method(o, x), "method", Times9),
    "method of super": (lambda B, C, o: lambda x: super(C, o).method(x), "method", Times9),
    "float of super": (lambda B, C, o: lambda x: super(C, o).k * x, "k", 9.0),
    "static": (lambda B, C, o: lambda x: o.static(x), "static", staticmethod(lambda x: x * 9)),
    "class method": (lambda B, C, o: lambda x: C.of_class(x), "of_class", classmethod(Times9)),
    "property": (lambda B, C, o: lambda x: o.gain * x, "gain", property(value(9.0))),
    "setter": (
        lambda B, C, o: assigning(o, "gain", "set"),
        "gain",
        property(value(2.0), lambda self, v: setattr(self, "set", v * 5)),
    ),
    "setattr": (
        lambda B, C, o: assigning(o, "a", "a"),
        "__setattr__",
        lambda self, name, v: object.__setattr__(self, name, v * 2),
    ),
    "getattr": (lambda B, C, o: lambda x: o.zz * x, "__getattr__", value(9.0)),
    "getattr, then there": (lambda B, C, o: lambda x: o.zz * x, "zz", 9.0),
    "default": (lambda B, C, o: lambda x: getattr(o, "optional", 1.0) * x, "optional", 9.0),
    "default of class": (
        lambda B, C, o: lambda x: getattr(C, "optional", 1.0) * x,
        "optional",
        9.0,
    ),
    "hasattr": (lambda B, C, o: lambda x: x * 2 if hasattr(o, "optional") else x, "optional", 9.0),
    "caught": (lambda B, C, o: attribute_or_none(o), "optional", 9.0),
    "caught of class": (lambda B, C, o: attribute_or_none(C), "optional", 9.0),
}
"""Programs of two classes and an object, each with the member it reads and another value."""


@pytest.mark.sampled(8)
@pytest.mark.parametrize("child", [False, True], ids=["base", "child"])
@pytest.mark.parametrize("name", MEMBERS)
def test_members_that_change_are_seen(name: str, child: bool) -> None:
    if name == "setter" and torch.__version__ < (2, 11):
        pytest.skip("Dynamo does not run setters in PyTorch 2.10: the graph breaks there")
    make, member, new = MEMBERS[name]
    base, derived = classes()
    f = make(base, derived, derived())
    g = tj.jit(f)
    assert torch.equal(g(X), f(X))
    g(X)
    assert tj.stats(g).misses == 1, "unchanged classes are no other program"
    setattr(derived if child else base, member, new)
    assert torch.equal(g(X), f(X))
    if child:
        delattr(derived, member)
        assert torch.equal(g(X), f(X))


@pytest.mark.filterwarnings("ignore:tj. .*set by a property:tj_core.TjWarning")  # PyTorch 2.10
def test_what_a_setter_sets_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TJ_STRICT", "0")
    _, derived = classes()
    g = tj.jit(assigning(derived(), "gain", "set"))
    for _ in range(2):
        assert torch.equal(g(X), X * 3)


@pytest.mark.parametrize("read", ["of_class", "of_object"])
def test_a_number_of_a_class_that_changes_is_seen(read: str) -> None:
    class Held:
        k = 2.0

    held = Held()
    g = tj.jit({"of_class": lambda x: x * Held.k, "of_object": lambda x: x * held.k}[read])
    assert torch.equal(g(X), X * 2)
    Held.k = 7.0
    assert torch.equal(g(X), X * 7)


@pytest.mark.parametrize("kind", [object, torch.nn.Module])
@pytest.mark.parametrize("own", [3.0, torch.full((3,), 3.0)], ids=["number", "tensor"])
def test_a_property_of_the_class_hides_what_an_object_has(kind: type, own: Any) -> None:
    class Held(kind):  # type: ignore[misc]  # a base that is a variable
        k = 2.0

    held = Held()
    held.k = own
    g = tj.jit(lambda x: x * held.k)
    for value, misses in ((4.0, 1), (5.0, 1), (property(lambda self: 7.0), 2)):
        Held.k = value
        assert torch.equal(g(X), X * held.k)
        assert tj.stats(g).misses == misses


def test_a_member_that_is_deleted_is_seen() -> None:
    class Base:
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    o = Base()
    g = tj.jit(lambda x: o.method(x))
    assert torch.equal(g(X), X + 1)
    del Base.method
    with pytest.raises(AttributeError, match="method"):
        g(X)


def test_data_of_a_class_that_a_program_counts_with() -> None:
    """The class changes at each call; only members that the program reads invalidate an entry."""

    class Counter:
        calls = 0

        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    o = Counter()
    g = tj.jit(lambda x: o.method(x))
    for _ in range(3):
        g(X)
        Counter.calls += 1
    assert tj.stats(g).misses == 1


def test_a_method_whose_code_is_replaced() -> None:
    """As a notebook does that loads an edited module again."""

    class Scaling:
        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    def edited(self: Scaling, x: torch.Tensor) -> torch.Tensor:
        return x * 9

    scaling = Scaling()
    jitted = tj.jit(lambda x: scaling.scale(x) + 1)
    torch.testing.assert_close(jitted(X), X * 2 + 1)
    Scaling.scale.__code__ = edited.__code__
    torch.testing.assert_close(jitted(X), X * 9 + 1)
