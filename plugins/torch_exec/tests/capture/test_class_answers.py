"""Answers of classes that change between calls: registered, fulfilled, with other bases."""

from __future__ import annotations

import abc
import gc
import weakref

import pytest
import tj_core as tj
import torch
from tj_torch.capture.eager_probe import captured_whole, equal_to_eager

pytestmark = pytest.mark.sampled(16)

HEAD = """
import abc, collections.abc, typing
x = torch.ones(2)
class A(abc.ABC): pass
class R: pass
class B(R): pass
class C(R): pass
class X(B): pass
o = X()
@typing.runtime_checkable
class Closable(typing.Protocol):
    def close(self): ...
@typing.runtime_checkable
class Named(typing.Protocol):
    name: str
class M(torch.nn.Module):
    def forward(self, x): return x * 2 if isinstance(self, A) else x + 0
m = M()
def function(): pass
"""
REGISTER = "A.register({}) and None"
BASES = ("setattr(X, '__bases__', (C,))", "setattr(X, '__bases__', (B,))")
METHOD = ("setattr(X, 'close', lambda self: 1)", "delattr(X, 'close')")
CALL = ("setattr({}, '__call__', lambda self: 1)", "delattr({}, '__call__')")

PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a registered class": ("isinstance(o, A)", (REGISTER.format("X"), REGISTER.format("int"))),
    "one for a new object": ("isinstance(X(), A)", (REGISTER.format("X"),)),
    "one among others": ("isinstance(o, (str, A, C))", (REGISTER.format("X"),)),
    "one in a union": ("isinstance(o, str | A)", (REGISTER.format("X"),)),
    "one of classes": ("issubclass(X, A)", (REGISTER.format("X"),)),
    "one for a tensor": ("isinstance(x, A)", (REGISTER.format("torch.Tensor"),)),
    "one of Python's": (
        "isinstance(o, collections.abc.Mapping)",
        ("collections.abc.Mapping.register(X) and None",),
    ),
    "one of typing": (
        "isinstance(o, typing.Sequence)",
        ("collections.abc.Sequence.register(X) and None",),
    ),
    "a class that an abstract one has denied": (
        "isinstance(o, collections.abc.Iterable)",
        ("setattr(X, '__iter__', lambda self: iter(()))", REGISTER.format("R")),
    ),
    "a fulfilled protocol": ("isinstance(o, Closable)", METHOD),
    "one that an object fulfils": (
        "isinstance(o, Closable)",
        ("setattr(o, 'close', lambda: 1)", "delattr(o, 'close')"),
    ),
    "one of data": ("isinstance(o, Named)", ("setattr(o, 'name', 'n')", "delattr(o, 'name')")),
    "one of classes that fulfil it": ("issubclass(X, Closable)", (*METHOD, REGISTER.format("R"))),
    "one that a function fulfils": (
        "isinstance(function, Named)",
        ("setattr(function, 'name', 'n')", "delattr(function, 'name')"),
    ),
    "one that the program fulfils": (
        "(setattr(o, 'name', 'n'), isinstance(o, Named))[1]",
        ("delattr(o, 'name')",),
    ),
    "other bases": ("isinstance(o, C)", BASES),
    "other bases than those that are asked for": ("isinstance(X(), B)", BASES),
    "other bases of classes": ("issubclass(X, (str, C))", BASES),
    "a called object": ("callable(o)", tuple(text.format("X") for text in CALL)),
    "a base that is called": ("callable(X())", tuple(text.format("R") for text in CALL)),
    "a length": ("o", ("setattr(X, '__len__', lambda self: 0)", "delattr(X, '__len__')")),
    "an equality in a list": (
        "3 in [o]",
        ("setattr(B, '__eq__', lambda self, other: True)", "delattr(B, '__eq__')"),
    ),
    "an equality": ("o == 3", ("setattr(B, '__eq__', lambda self, other: True)",)),
}


@pytest.mark.parametrize("after", ["", "    torch._dynamo.graph_break()\n"], ids=["", "a break"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_answer_that_changes_is_asked_for_again(name: str, after: str) -> None:
    condition, changes = PROGRAMS[name]
    text = f"{HEAD}def f(x):\n{after}    return x * 2 if {condition} else x + 0\n"
    calls = [call for change in changes for call in (change, "f(x)", "f(x)")]
    equal_to_eager(text, "f(x)", *calls)()


def test_a_module_that_is_registered() -> None:
    equal_to_eager(f"{HEAD}def f(x): return m(x)", "f(x)", REGISTER.format("M"), "f(x)")()


def test_questions_are_captured() -> None:
    asked = "isinstance(o, (A, Named)), issubclass(int, A), callable(o), isinstance([x], Closable)"
    captured_whole(f"{HEAD}def f(x): return x + 1, {asked}", "f(x)")


def test_what_is_registered_elsewhere_is_no_recompile() -> None:
    class A(abc.ABC):  # noqa: B024
        pass

    jitted = tj.jit(lambda x: x * 2 if isinstance(x, A) else x + 1, plugins=["torch"])
    jitted(torch.ones(2))
    A.register(int)
    jitted(torch.ones(2))
    assert tj.stats(jitted).misses == 1
    A.register(torch.Tensor)
    jitted(torch.ones(2))
    reason = tj.programs(jitted)[-1].entry.reason
    assert tj.stats(jitted).misses == 2
    assert "not issubclass(Tensor, " in reason


@pytest.mark.filterwarnings("ignore::tj_core.TjWarning")
def test_guards_of_fragments_keep_no_classes() -> None:
    """They stand in the code that is guarded, where no garbage collection looks."""
    alive = _called()
    gc.collect()
    assert alive() is None


def _called() -> weakref.ref[type]:
    """Call a program with a graph break, of which all is dropped, and refer to its class."""

    class Local:
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if isinstance(self, Local) else x

    def f(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return Local().scaled(x)

    tj.jit(f, plugins=["torch"])(torch.ones(2))
    return weakref.ref(Local)
