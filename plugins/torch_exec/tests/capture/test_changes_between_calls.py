"""Surroundings of programs that change between calls: orders of keys, modules, their members."""

from __future__ import annotations

import re

import pytest
from tj_torch.capture.eager_probe import equal_to_eager

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("lenient", "forgotten")]

START = """
import sys, types
from collections import OrderedDict
x = torch.arange(3.0)
def seen(*args):
    '''The result of a call with the gradient of a leaf.'''
    leaf = x.clone().requires_grad_()
    found = f(leaf, *args)
    value = found[0] if isinstance(found, tuple) else found
    value.sum().backward()
    return found, leaf.grad
"""

BREAK = "torch._dynamo.graph_break()\n"

ORDERS = {
    "equality": (
        "a, b = OrderedDict(p=1, q=2), OrderedDict(p=1, q=2)\n"
        "def f(x):\n    return x * 2 if a == b else x * 3",
        ("a.move_to_end('p')", "b.move_to_end('p')", "b.update(p=3)"),
    ),
    "equality with a new one": (
        "a = OrderedDict(p=1, q=2)\n"
        "def f(x):\n    return x * 2 if a != OrderedDict([('p', 1), ('q', 2)]) else x * 3",
        ("a.move_to_end('p')", "a.move_to_end('q')"),
    ),
    "a loop": (
        "a = OrderedDict(p=1, q=2, r=3)\n"
        "def f(x):\n"
        "    for key in a: x = x * 2 + a[key]\n"
        "    return x",
        ("a.move_to_end('p')", "a.move_to_end('p', last=False)", "a.pop('q') and None"),
    ),
    "views and copies": (
        "a = OrderedDict(p=1, q=2, r=3)\n"
        "def f(x):\n"
        "    for v in a.values(): x = x * 2 + v\n"
        "    return x, list(a.items()), str(a), list(reversed(a)), dict(a), a.copy(), [*a]",
        ("a.move_to_end('p')", "a.move_to_end('r', last=False)"),
    ),
    "the first item": (
        "a = OrderedDict(p=1, q=2, r=3)\n"
        "def f(x):\n"
        "    key, value = a.popitem(last=False)\n"
        "    a[key] = value + 1\n"
        "    return x * value, key",
        ("a.move_to_end('p', last=False)", "a.move_to_end('q')", "list(a.items())"),
    ),
    "a derived class": (
        "class Own(OrderedDict): pass\n"
        "a = Own(p=1, q=2)\n"
        "def f(x):\n"
        "    for key, value in a.items(): x = x * 2 + value\n"
        "    return x",
        ("a.move_to_end('p')", "a.move_to_end('p')"),
    ),
    "keys that are objects": (
        "class Key: pass\n"
        "keys = Key(), x.clone()\n"
        "a = OrderedDict(zip(keys, (1, 2)))\n"
        "def f(x):\n"
        "    for value in a.values(): x = x * 2 + value\n"
        "    return x",
        ("a.move_to_end(keys[0])", "a.move_to_end(keys[1])"),
    ),
}

EMPTY = {
    "the factory of a defaultdict": (
        "from collections import defaultdict\n"
        "d = defaultdict(lambda: 2)\n"
        "def f(x):\n    for key in d: x = x + d[key]\n    return x * d['a'], [*d]",
        ("d.clear()", "setattr(d, 'default_factory', lambda: 5)", "d.clear()"),
    ),
    "no loop": (
        "from collections import defaultdict\n"
        "d = defaultdict(lambda: 2)\n"
        "def f(x):\n    return x * d['a']",
        ("(d.clear(), setattr(d, 'default_factory', lambda: 5))[1]", "d.clear()"),
    ),
    "an attribute of a derived class": (
        "class Own(OrderedDict): pass\n"
        "d = Own()\nd.k = 2\n"
        "def f(x):\n    for key in d: x = x + key\n    return x * d.k",
        ("setattr(d, 'k', 3)", "d.update({4: 1})", "setattr(d, 'k', 5)", "d.clear()"),
    ),
    "items that come": (
        "d = {}\ndef f(x):\n    for key in d: x = x + key\n    return x * 2, list(d.items())",
        ("d.update({4: 1})", "d.clear()"),
    ),
}
"""Programs that walk through an empty dict."""

ATTRIBUTES = {
    "a handler": "try: k = y.k\n    except AttributeError: k = 1\n    return x * k",
    "a default": "return x * getattr(y, 'k', 1)",
    "a test": "return x * (y.k if hasattr(y, 'k') else 1)",
}

MODULE = """
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer('shift', torch.ones(3))
        self.layer = torch.nn.Sequential(torch.nn.Linear(3, 3))
        for p in self.layer.parameters(): torch.nn.init.ones_(p)
    def forward(self, x):
        return self.layer(x * self.weight) + self.shift
f = m = M()
hide = object.__setattr__
show = object.__delattr__
"""

MEMBERS = {
    "a parameter": ("hide(m, 'weight', x * 3)", "show(m, 'weight')"),
    "a buffer": ("hide(m, 'shift', x * 3)", "show(m, 'shift')"),
    "a submodule": ("hide(m, 'layer', torch.sin)", "show(m, 'layer')"),
    "a parameter of a submodule": (
        "m.layer[0].__dict__.update(bias=x * 2)",
        "m.layer[0].__dict__.pop('bias') and None",
    ),
}

IMPORTS = {
    "a module": "import tj_found\n    return x * tj_found.k",
    "a name": "from tj_found import k\n    return x * k",
    "a module by another name": "import tj_found as found\n    return x * found.k + found.g(x)",
    "a part": "import tj_found.part as part\n    return x * part.k",
    "a name of a part": "from tj_found.part import k, g\n    return x * k + g(x)",
}
PUT = """
def put(k):
    '''Put a package and a part of it in `sys.modules`.'''
    made = [types.ModuleType(name) for name in ('tj_found', 'tj_found.part')]
    for each in made:
        sys.modules[each.__name__] = each
        each.__path__, each.k, k = [], k, k + 1
        exec('def g(x): return x + k', vars(each))
    made[0].part = made[1]
    return made
def again(made): sys.modules.update({each.__name__: each for each in made})
first = put(2)
"""


def compare(text: str, *changes: str, broken: bool = False) -> None:
    """Compare a program in eager and under tj, before and after each change."""
    if broken:  # the rest of the function is a program of its own
        text = re.sub(r"(def (?:f|forward)\(.*\):\n)( +)", rf"\1\2{BREAK}\2", text)
    calls = [c for change in changes for c in (change, "seen()")]
    plugins = ("autograd", "torch")
    equal_to_eager(START + text, "seen()", "seen()", *calls, plugins=plugins)()


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_keys(name: str, broken: bool) -> None:
    text, changes = ORDERS[name]
    compare(text, *changes, broken=broken)


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
@pytest.mark.parametrize("name", EMPTY)
def test_what_an_empty_dict_has_beside_items(name: str, broken: bool) -> None:
    text, changes = EMPTY[name]
    compare(text, *changes, broken=broken)


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_a_tensor_gets(name: str, broken: bool) -> None:
    text = f"y = x.clone()\ndef f(x):\n    {ATTRIBUTES[name]}"
    changes = ("setattr(y, 'k', 3)", "setattr(y, 'k', x * 2)", "delattr(y, 'k')")
    compare(text, *changes, broken=broken)


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_of_a_module_that_is_hidden(name: str, broken: bool) -> None:
    compare(MODULE, *MEMBERS[name], broken=broken)


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
@pytest.mark.parametrize("name", IMPORTS)
def test_a_module_that_is_replaced(name: str, broken: bool) -> None:
    changes = ("again(put(5))", "sys.modules['tj_found'].part.k", "again(first)")
    compare(f"{PUT}def f(x):\n    {IMPORTS[name]}", *changes, broken=broken)
