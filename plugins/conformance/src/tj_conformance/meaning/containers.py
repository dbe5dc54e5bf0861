"""Programs that use containers of Python, their subclasses, and tensors in them."""

from __future__ import annotations

from collections.abc import Iterator

from tj_conformance.meaning.scripts import Script

__all__ = ["programs"]

_SETUP = """
import functools, collections
from torch.utils import _pytree as pytree
from collections import deque, Counter, defaultdict, OrderedDict, namedtuple
x = torch.arange(3.)
log = []
class L(list):
    def total(self): 
        return sum(self)
    def append(self, v):
        log.append(v)
        super().append(v)
class D(dict):
    def __missing__(self, k):
        log.append(k)
        return 7
    def __setitem__(self, k, v):
        log.append(('set', k))
        super().__setitem__(k, v)
class S(set):
    def add(self, v):
        log.append(v)
        super().add(v)
    def __contains__(self, v):
        log.append('in')
        return super().__contains__(v)
    def total(self):
        return sum(self)
class T(tuple):
    def first(self): return self[0]
class Plain(list): pass
class PD(dict): pass
class PS(set): pass
d = deque([1, 2, 3], maxlen=3); c = Counter('abca'); dn = defaultdict(int)
dd = defaultdict(list, {'a': [1]})
l, D_, s, t = L([1, 2]), D({'a': 1}), S([1, 2]), T((1, 2))
pl, pd, ps = Plain([1]), PD({'a': 1}), PS([1])
od = OrderedDict(a=1, b=2)
fs = frozenset([1, 2])
sizes = torch.Size([4])
"""

_USES = {
    "d": (
        "o.append(x.shape[0])", "o.appendleft(9)", "o.pop()", "o.popleft()", "o.extend([7, 8])",
        "o.rotate(1)", "o.maxlen", "o[0]", "len(o)", "list(o)", "o == deque([1,2,3])",
        "o.insert(0, 1)", "o.clear()", "o.index(2)", "o.count(2)", "2 in o", "o.remove(2)",
        "o.reverse()", "o.copy()", "deque(o, maxlen=2)", "deque([1,2,3], maxlen=2)",
        "o.extendleft([5, 6])", "o + o", "deque([x, x+1], 1)", "o * 2", "repr(o)",
        "o.__imul__(2)", "bool(o)",
    ),
    "c": (
        "o['a']", "o['zz']", "o.most_common(1)", "o.update('ab')", "o.total()",
        "list(o.elements())", "o + Counter('a')", "o - Counter('a')", "o.subtract('a')",
        "o & Counter('a')", "Counter([1, 1, 2])", "Counter(a=2)", "o.__setitem__('q', 1)",
        "'a' in o", "o.pop('a', 0)", "len(o)", "+o", "o == Counter('abca')", "dict(o)",
        "o.copy()", "Counter({1: 2}).most_common()", "o.setdefault('q', 4)", "o | Counter('z')",
        "repr(o)",
    ),
    "dd": (
        "o['a'].append(2)", "o['n']", "o['n'].append(x.shape[0])", "o.get('q')",
        "o.default_factory", "len(o)", "'q' in o", "o.setdefault('z', [])", "dict(o)",
        "defaultdict(list)['a']", "defaultdict(lambda: 3)['a']", "o.copy()", "o.pop('a', 1)",
        "o == {'a': [1]}", "defaultdict(int, a=1)", "repr(o)", "o.__missing__('k')",
        "list(o.items())",
    ),
    "dn": (
        "o.__setitem__('a', o['a'] + 1)", "sum(o[k] for k in 'ab')",
    ),
    "l": (
        "o.total()", "o.append(3)", "o[0]", "len(o)", "o + [1]", "o == [1, 2]", "o.extend([4])",
        "o.copy()", "[*o]", "2 in o", "L([1]).total()", "L([x.shape[0]])",
        "o.__setitem__(0, 5)", "sorted(o)", "o * 2", "o.sort()", "repr(o)",
        "isinstance(o, list)", "o[:1]", "o.pop()",
    ),
    "D_": (
        "o['a']", "o['q']", "o.get('q')", "o.__setitem__('z', 1)", "o.update(b=1)",
        "D(a=1)['q']", "len(o)", "'q' in o", "o.pop('a', 1)", "o.copy()", "dict(o)",
        "o | {'c': 1}", "o == {'a': 1}", "list(o)", "o.setdefault('w', 1)", "repr(o)", "{**o}",
    ),
    "s": (
        "o.total()", "o.add(5)", "2 in o", "9 in o", "o | {4}", "o - {1}", "len(o)", "o.copy()",
        "S([1]).total()", "o.update([8])", "o == {1, 2}", "o.discard(1)", "sorted(o)",
        "o.pop()", "o & {1}", "o.issubset({1, 2, 3})", "repr(o)", "set(o)", "S([x.shape[0]])",
        "o.remove(1)", "o.union([3])",
    ),
    "t": (
        "o.first()", "o[0]", "o + (1,)", "o == (1, 2)", "T([1]).first()", "len(o)", "T([x, 1])",
        "o[:1]", "repr(o)", "tuple(o)", "hash(o) == hash((1,2))",
    ),
    "od": (
        "o.move_to_end('a')", "o.popitem(last=False)", "list(o)", "o == OrderedDict(b=2, a=1)",
        "o.__setitem__('c', 3)", "OrderedDict(z=1, y=2)", "list(reversed(o))", "o.copy()",
        "o | {'q': 1}",
    ),
    "pl": (
        "o.append(2)", "o + [1]", "Plain([1, 2])", "o == [1]", "setattr(o, 'q', 1)",
    ),
    "pd": (
        "o.__setitem__('b', 2)", "PD(a=1)", "o.copy()", "setattr(o, 'q', 1)",
    ),
    "ps": (
        "o.add(2)", "PS([1])", "o | {2}", "setattr(o, 'q', 1)", "o == {1}",
    ),
    "sizes": (
        "pytree.tree_map(str, o)", "pytree.tree_map(lambda n: n * 2, x.shape)",
        "pytree.tree_map(lambda n: n + 1, {'a': [x.shape, x.size(0)]})",
        "pytree.tree_map(lambda a, b: a + b, x.shape, o)", "pytree.tree_leaves(x.shape)",
        "pytree.tree_map_with_path(lambda path, n: (len(path), n), x.shape)",
        "pytree.tree_unflatten([1], pytree.tree_structure(x.shape))", "o + x.shape",
        "tuple(o)", "o * 2", "o[:1]", "o == x.shape", "o.numel()",
    ),
}  # fmt: skip
"""Operations on each of the containers in the setup."""

_OF_TENSORS = (
    "x in [y, x]", "x in [x]", "x in [1, x]", "[x, y].index(y)", "[y, x].count(x)", "x in (y,)",
    "x in {1: x}.values()", "[x] == [x]", "[x] == [y]", "(x,) == (x,)", "x in {x: 1}",
    "x in {x}", "x in deque([y, x])", "[x, y].remove(y)", "1 in [x]", "'a' in [x]",
    "None in [x, None]", "x in []", "x in [None]", "x in [y[0]]", "{'a': x} == {'a': x}",
    "{'a': x} == {'a': y}", "x == None", "x != None", "x in y", "2. in y", "x is x",
    "{x: 1}[x]", "max([x, y])", "sorted([x, y])", "x[0] in [y[0], 2]", "any([x, y])",
    "[x, y].index(x)", "min(x[0], y[0])", "len({x, y})", "x in [y, 'a']", "x not in [y]",
    "Counter([x, x])",
)  # fmt: skip


def programs() -> Iterator[tuple[str, Script]]:
    """All programs of the family, by name."""
    for name, uses in _USES.items():
        for use in uses:
            text = f"""
def f(o, x):
    r = {use}
    return x + 1, r, type(r).__name__, type(o).__name__
"""
            script = Script(_SETUP + text, (f"f({name}, x)",) * 3, f"{name}, log")
            yield f"{name}: {use}", script
    for use in _OF_TENSORS:
        text = f"y = torch.arange(3.)\ndef f(x, y):\n    return x + 1, {use}"
        calls = ("f(x, y)", "f(x, x)", "f(x[:1], y[1:2])")
        yield f"tensors: {use}", Script(_SETUP + text, calls)
