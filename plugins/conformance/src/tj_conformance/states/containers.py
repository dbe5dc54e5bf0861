"""Parts of modules that are containers and other objects of Python."""

from __future__ import annotations

from collections.abc import Mapping

from tj_conformance.states.part import Part, numbers

__all__ = ["CONTAINERS"]

CONTAINERS: Mapping[str, Part] = {
    "dict of tensors": Part(
        """
self.td# = {'a': torch.ones(4), 'b': torch.full((4,), 2.0)}
""",
        """
for k, v in self.td#.items(): x = x * 0.5 + v + len(k)
""",
        """
m.td#['c'] = torch.randn(4)
m.td#['ab'] = torch.randn(4)
m.td#.pop('a')
m.td#['a'] = m.td#.pop('a')
m.td# = dict(reversed(m.td#.items()))
m.td#['a'] = 3.0
m.td#['a'].add_(1)
m.td#.clear()
m.td# = collections.OrderedDict(m.td#)
m.td#.move_to_end('a')
m.td#['a'] = m.td#['b']
m.td# = collections.defaultdict(float, m.td#)
m.td#['b'].requires_grad_()
m.td#['b'] = torch.randn(4, 4)[:, 1]
m.td# = {k: v * 2 for k, v in m.td#.items()}
""",
    ),
    "dict with defaults": Part(
        """
self.td# = {'a': torch.ones(4)}
""",
        """
x = x + self.td#.get('b', 1.5)
x = x * 2 if 'a' in self.td# else x * 3
""",
        """
m.td#['b'] = torch.randn(4)
m.td#['b'] = 2.0
m.td#.pop('a')
m.td#.pop('b')
m.td#['a'] = None
m.td#['b'] = None
m.td# = collections.defaultdict(lambda: 7.0)
m.td#.clear()
""",
    ),
    "missing keys": Part(
        """
self.td# = {'a': 1.0, 1: 2.0}
""",
        """
try: x = x + self.td#['b']
except KeyError: x = x - self.td#[1]
""",
        """
m.td#['b'] = 3.0
m.td#[1] = 5
m.td#[True] = 6.0
del m.td#['b']
del m.td#[1]
m.td#[1.0] = 9.0
m.td# = collections.defaultdict(int)
m.td# = types.MappingProxyType({1: 4.0})
""",
    ),
    "list of tensors": Part(
        """
self.tl# = [torch.ones(4), 2.0]
""",
        """
for v in self.tl#: x = x + v
""",
        """
m.tl#.append(torch.randn(4))
m.tl#.append(1)
m.tl#.pop()
m.tl#.pop(0)
m.tl#.reverse()
m.tl#.clear()
m.tl# = tuple(m.tl#)
m.tl#[0] = torch.randn(4)
m.tl#[0] = -0.0
m.tl#.insert(0, m.tl#[-1])
m.tl# = collections.deque(m.tl#)
m.tl#[1:] = [5.0, 6.0]
m.tl#[0].mul_(2)
m.tl#.append(nn.Parameter(torch.ones(4)))
m.tl# = m.tl# * 2
""",
    ),
    "list of numbers": Part(
        """
self.tl# = [1, 2]
""",
        """
x = x * len(self.tl#) + sum(self.tl#)
if self.tl#: x = x + self.tl#[-1]
""",
        """
m.tl#.append(3)
m.tl#.append(0.5)
m.tl#.pop()
m.tl#.clear()
m.tl# = (1, 2)
m.tl# = range(3)
m.tl# = {4, 5}
m.tl#[0] = True
m.tl#[-1] = 1.0
m.tl# = [2, 1]
m.tl# = collections.deque([1, 2])
m.tl#.extend([1, 1])
""",
    ),
    "growing list": Part(
        """
self.seen# = []
""",
        """
self.seen#.append(x.shape[0])
x = x + len(self.seen#)
""",
        """
m.seen#.clear()
m.seen# = []
m.seen#.append(1)
m.seen#.pop()
m.seen# = collections.deque(maxlen=2)
""",
    ),
    "cache by size": Part(
        """
self.cache# = {}
""",
        """
n = x.shape[0]
if n not in self.cache#: self.cache#[n] = torch.arange(n)[:, None] * 0.1
x = x + self.cache#[n]
""",
        """
m.cache#.clear()
m.cache# = {3: torch.ones(3, 1)}
m.cache#[3] = torch.zeros(3, 1)
m.cache#.popitem()
""",
    ),
    "set": Part(
        """
self.fl# = {'relu'}
""",
        """
x = x.relu() if 'relu' in self.fl# else x.neg()
x = x + len(self.fl#)
""",
        """
m.fl#.add('x')
m.fl#.discard('relu')
m.fl#.add('relu')
m.fl#.clear()
m.fl# = frozenset(m.fl#)
m.fl# = ['relu']
m.fl# = {'relu': 0}
m.fl# = 'a relu'
""",
    ),
    "enum": Part(
        """
self.en# = Color.RED
""",
        """
x = x * self.en#.value
if self.en# is Color.BLUE: x = x.exp()
""",
        """
m.en# = Color.BLUE
m.en# = Color.RED
m.en# = Box(3)
m.en# = types.SimpleNamespace(value=2)
""",
    ),
    "dataclass": Part(
        """
self.cfg# = Cfg()
""",
        """
x = getattr(torch, self.cfg#.act)(x) * self.cfg#.scale + sum(self.cfg#.flags)
""",
        """
m.cfg#.scale = 2.0
m.cfg#.scale = 0
m.cfg#.act = 'tanh'
m.cfg#.act = 'nope'
m.cfg#.flags = (2, 1)
m.cfg#.flags = ()
m.cfg# = Cfg(3.0)
m.cfg# = dataclasses.replace(m.cfg#, act='sin')
del m.cfg#.scale
Cfg.scale = 5.0
m.cfg# = copy.copy(m.cfg#)
m.cfg#.scale = torch.tensor(2.0)
m.cfg#.flags = [3]
m.cfg#.flags = (1.5, True)
m.cfg#.act = 'cos'
""",
    ),
    "object": Part(
        """
self.bx# = Box(2.0)
""",
        """
x = x * self.bx#.get()
""",
        """
m.bx#.v = 3.0
m.bx#.v = torch.randn(4)
m.bx# = Box(1)
m.bx#.get = lambda: 5.0
del m.bx#.get
Box.get = lambda self: self.v + 1
m.bx#.v = 0
m.bx#.__class__ = types.SimpleNamespace
m.bx#.v = nn.Parameter(torch.ones(4))
m.bx#.v.mul_(2)
del m.bx#.v
""",
    ),
    "slots": Part(
        """
self.sl# = Slots(2.0)
""",
        """
x = x * self.sl#.v
if hasattr(self.sl#, 't'): x = x + self.sl#.t
""",
        """
m.sl#.v = 3.0
m.sl#.t = torch.ones(4)
m.sl#.t = 2
del m.sl#.t
del m.sl#.v
m.sl# = Slots(1)
m.sl#.t = m.sl#.v
""",
    ),
    "namespace": Part(
        """
self.ns# = types.SimpleNamespace(a=1.0, t=torch.ones(4))
""",
        """
x = x * self.ns#.a + self.ns#.t
""",
        """
m.ns#.a = 2
m.ns#.a = torch.ones(4)
m.ns#.t = torch.randn(4)
m.ns#.t = 0.0
m.ns# = types.SimpleNamespace(a=3.0, t=-0.0)
del m.ns#.a
m.ns#.t.add_(1)
""",
    ),
    "returned attributes": Part(
        """
self.k# = 1
self.kd# = {'a': 1}
self.t# = torch.randn(4)
""",
        """
out += [self.k#, self.kd#, self.t#]
""",
        numbers("m.k#")
        + numbers("m.t#")
        + """
m.kd#['b'] = 2
m.kd# = {'a': 1}
m.kd#.clear()
m.kd#['a'] = torch.ones(2)
m.t# = torch.randn(4)
m.t#.add_(1)
m.t# = m.t#[:2]
m.t# = nn.Parameter(torch.ones(4))
m.t#.requires_grad_()
""",
    ),
}
"""Parts by name; ``#`` stands for the number of the part in its program."""
