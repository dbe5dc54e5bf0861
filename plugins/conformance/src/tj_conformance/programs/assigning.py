"""Programs that set and delete attributes that some objects refuse, and may catch the error."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tj_conformance.programs.observations import SeenProgram

__all__ = ["OBJECTS", "assigning_programs"]

OBJECTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Slots()": ("a", "b"),
        "Property()": ("p", "q"),
        "Refusing()": ("p",),
        "Described()": ("d",),
        "Frozen()": ("p", "q"),
        "FrozenSlots()": ("p", "q"),
        "Choosing()": ("good", "bad"),
        "Keeping()": ("a",),
        "Named()": ("a", "b"),
        "Color.RED": ("value", "other"),
        "Color": ("RED", "BLUE"),
        "Ruled": ("a", "b"),
        "Plain": ("a", "b"),
        "object()": ("a",),
        "3": ("a",),
        "'text'": ("a",),
        "(1, 2)": ("a",),
        "[]": ("a", "append"),
        "{}": ("a",),
        "(lambda: 0)": ("a", "__name__", "__code__"),
        "len": ("a",),
        "int": ("a",),
        "Net()": ("weight", "buffer", "child", "other", "training"),
        "PropertyNet()": ("p",),
        "types.SimpleNamespace()": ("a",),
        "None": ("a",),
        "collections.Counter()": ("a",),
        "torch.float32": ("a",),
        "torch.Size([2])": ("a",),
        "ValueError('a')": ("a", "args"),
        "range(3)": ("a",),
        "functools.partial(int)": ("a", "func"),
        "types.MappingProxyType({})": ("a",),
        "torch.ones(2)": ("a", "shape", "requires_grad", "grad", "is_leaf"),
    }
)
"""Expressions of objects, and the attributes that programs change."""

_VALUES = ("3", "x", "'text'")

_CHANGES: Mapping[str, str] = MappingProxyType(
    {
        "set": "h.{a} = v",
        "setattr": "setattr(h, {a!r}, v)",
        "delete": "del h.{a}",
        "delattr": "delattr(h, {a!r})",
        "set twice": "h.{a} = v; h.{a} = v",
        "set and delete": "h.{a} = v; del h.{a}",
    }
)

_PROGRAMS: Mapping[str, str] = MappingProxyType(
    {
        "caught": "def program(x):\n    v = {v}\n    try:\n        {change}\n"
        "    except (AttributeError, TypeError, RuntimeError, ValueError, KeyError) as e:\n"
        "        return x * 2, type(e).__name__, len(e.args)\n    return x + 1, 'set', 0\n",
        "caught late": "def program(x):\n    v = {v}\n    y = x.sin()\n    try:\n        {change}\n"
        "        y = y + 1\n    except Exception as e:\n        y = y * 2, type(e).__name__\n"
        "    return y\n",
        "raised": "def program(x):\n    v = {v}\n    y = x.sin()\n    {change}\n    return y + 1\n",
    }
)

_HEAD = """\
import collections, dataclasses, enum, functools, types, typing
import torch

class Slots:
    __slots__ = ("a",)

class Plain:
    a = 1

class Property:
    @property
    def p(self):
        return 1

class Refusing:
    @property
    def p(self):
        return 1
    @p.setter
    def p(self, value):
        raise AttributeError("no p", 3)

class Descriptor:
    def __get__(self, instance, owner=None):
        return 1
    def __set__(self, instance, value):
        raise AttributeError("described")

class Described:
    d = Descriptor()

@dataclasses.dataclass(frozen=True)
class Frozen:
    p: int = 1

@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    p: int = 1

class Choosing:
    def __setattr__(self, name, value):
        if name != "good":
            raise AttributeError(name)
        object.__setattr__(self, name, value)

class Keeping:
    def __init__(self):
        self.a = 1
    def __delattr__(self, name):
        raise AttributeError("kept " + name)

class Named(typing.NamedTuple):
    a: int = 1

class Color(enum.Enum):
    RED = 1

class Rules(type):
    def __setattr__(cls, name, value):
        raise AttributeError("ruled " + name)

class Ruled(metaclass=Rules):
    a = 1

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("buffer", torch.ones(4))
        self.child = torch.nn.Identity()

class PropertyNet(torch.nn.Module):
    @property
    def p(self):
        return 1

h = {object}

def state():
    try:
        found = h.{a}
    except Exception as e:
        found = type(e)
    return found if isinstance(found, (int, str, torch.Tensor)) else type(found).__name__

"""


def assigning_programs() -> Iterator[SeenProgram]:
    """Each change of each attribute, caught or not; three calls with other values."""
    for (text, names), (change, statement), (kind, program) in itertools.product(
        OBJECTS.items(), _CHANGES.items(), _PROGRAMS.items()
    ):
        values = _VALUES if "v" in statement.split() or "v)" in statement else _VALUES[:1]
        for a, v in itertools.product(names, values):
            head = _HEAD.replace("{object}", text).replace("{a}", a)
            made = program.format(v=v, change=statement.format(a=a))
            calls = tuple(f"(torch.arange(4.0) * {k},)" for k in (1, -1, 2))
            yield SeenProgram(f"{change} {v} to {a} of {text}, {kind}", head + made, calls)
