"""Dicts and sets that change between calls, and keys that a class of the program's compares."""

from __future__ import annotations

import pytest
from tj_torch.capture.eager_probe import equal_to_eager

pytestmark = pytest.mark.usefixtures("lenient", "forgotten")

START = """
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from functools import partial
x = torch.arange(3.0)
d = dict(a=1, b=2)
def g(**given): return given
class List(list): pass
class Dict(dict): pass
class Key:
    def __init__(self, value): self.value = value
    def __hash__(self): return hash(self.value)
    def __eq__(self, other): return self.value == getattr(other, 'value', other)
@dataclass(unsafe_hash=True)
class Data:
    value: int
one, other = Key(1), Key(1)
same, as_well = Data(1), Data(1)
"""

WALKS = [
    "d.copy()",
    "{**d}",
    "d | {}",
    "{} | d",
    "dict(d)",
    "g(**d)",
    "partial(g, **d)()",
    "[*d]",
    "list(d)",
    "tuple(d)",
    "(*d,)",
    "[0].__iadd__(d)",
    "deque(d)",
    "(lambda a, *b: (a, b))(*d)",
    "max(d, key=lambda key: 0)",
    "sorted(d, key=lambda key: 0)",
    "','.join(d)",
    "str(d)",
    "f'{d}'",
    "[*reversed(d)]",
    "next(iter(d.items()))",
]

CHANGES = ("d.update(a=d.pop('a'))", "d.update(c=3)", "d.pop('b') and None", "d.update(a=9)")

TEXTS = [
    "str(OrderedDict(d))",
    "f'{Dict(d)}'",
    "'{}'.format(List(d))",
    "'%s' % (defaultdict(int, d),)",
    "str(Counter(d))",
]

KEYS = [
    "len({one, other})",
    "{one: 1}.get(other, 2)",
    "other in {one: 1}",
    "{1: 3}.get(one, 4)",
    "len({same, as_well})",
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("value", WALKS)
def test_the_order_of_keys_is_asked_in_each_call(value: str) -> None:
    calls = [call for change in CHANGES for call in (change, "f(x)")]
    text = f"def f(x):\n    found = {value}\n    return x * 2, found, str(found)"
    # Dynamo adds no dict to a list in place, and raises.
    left = "__iadd__" in value
    equal_to_eager(START + text, "f(x)", *calls, leaves_frames=left)()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("value", TEXTS)
def test_texts_of_containers_that_a_program_makes(value: str) -> None:
    equal_to_eager(f"{START}def f(x): return x * 2, {value}", "f(x)", "d.update(c=3)", "f(x)")()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("value", KEYS)
def test_equal_keys_are_one(value: str) -> None:
    changes = ("setattr(other, 'value', 2)", "setattr(as_well, 'value', 2)")
    calls = [call for change in changes for call in (change, "f(x)")]
    text = f"{START}def f(x): return x * {value}"
    # Up to 2.13 Dynamo raises an error of its own for some keys of a class of the program's.
    equal_to_eager(text, "f(x)", *calls, leaves_frames=True)()
