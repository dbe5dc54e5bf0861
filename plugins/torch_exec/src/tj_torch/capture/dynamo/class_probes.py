"""Probes of what programs read from classes, see `tj_torch.capture.dynamo.probes`."""

from __future__ import annotations

from tj_torch.capture.eager_probe import equal_to_eager

__all__ = [
    "answers",
    "attributes",
    "checks",
    "computed_attributes",
    "constructors",
    "descriptors",
    "ends",
    "enum_members",
    "equal_keys",
    "hidden_members",
    "lists_and_sets",
    "made_classes",
    "members",
    "metaclasses",
    "method_closures",
    "missing_attributes",
    "own_dicts",
    "own_methods",
    "stops",
]

members = equal_to_eager(
    """
x = torch.ones(2)
class Base:
    def scale(self): return 2
class A(Base):
    pass
a = A()
def f(x, broken=0):
    if broken: torch._dynamo.graph_break()
    return x * a.scale()
def change(): A.scale = lambda self: 3
""",
    "f(x)", "f(x, 1)", "change()", "f(x)", "f(x, 1)",
)  # fmt: skip

attributes = equal_to_eager(
    """
x = torch.ones(2)
class Base:
    count = 0
class A(Base):
    def more(self):
        Base.count += 1
        return x * self.count
a = A()
def f(): return a.more() + A.count
""",
    "f()", "Base.count",
)  # fmt: skip

metaclasses = equal_to_eager(
    """
x = torch.ones(2)
class Single(type):
    made = []
    def __call__(cls, *args):
        if not Single.made: Single.made.append(super().__call__(*args))
        return Single.made[0]
class A(metaclass=Single):
    def __init__(self, v): self.v = v
def f(x, v):
    a = A(v)
    return x * a.v, a is A(9)
""",
    "f(x, 2)", "f(x, 3)", "len(Single.made)",
)  # fmt: skip

checks = equal_to_eager(
    """
x = torch.ones(2)
class Long(type):
    least = 1
    def __instancecheck__(cls, other): return len(other) > cls.least
class A(metaclass=Long):
    pass
def f(x): return x + isinstance(x, A)
""",
    "f(x)", "f(torch.ones(1))", "setattr(Long, 'least', 2)", "f(x)",
)  # fmt: skip

answers = equal_to_eager(
    """
import abc
x = torch.ones(2)
class A(abc.ABC): pass
class B: pass
o = B()
def f(x): return x * (2 if isinstance(o, A) else 3) + callable(o)
""",
    "f(x)", "A.register(B) and None", "f(x)", "setattr(B, '__call__', print)", "f(x)",
)  # fmt: skip

lists_and_sets = equal_to_eager(
    """
x = torch.ones(2)
class A:
    calls, seen = [], set()
class B(A): pass
class M(torch.nn.Module):
    kept = ([], 1)
    def __init__(self):
        super().__init__()
        self.own = ([], 1)
    def forward(self, x):
        self.own[0].append(2)
        return x * len(self.own[0]) + len(self.kept[0])
m = M()
kinds = {A}
def f(x):
    A.calls.append(len(A.calls))
    kinds.add(len(kinds))
    return m(x) * len(B.calls) + len(A.seen), B.calls, B.calls is A.calls
""",
    "f(x)", "f(x)", "A.seen.add(1)", "A.calls.append(7)", "m.own[0].append(1)",
    "m.kept[0].append(1)", "f(x)", "A.calls", "m.own", "len(kinds)",
)  # fmt: skip

made_classes = equal_to_eager(
    """
x = torch.ones(2)
class A:
    calls, keys = [], {}
def f(x):
    B = type('B', (A,), {})
    B.calls.append(1)
    return x * len(B.keys), B
""",
    "f(x)[0]", "A.keys.update(k=1)", "f(x)[0]", "A.calls", "f(x)[1] is f(x)[1]",
)  # fmt: skip

own_methods = equal_to_eager(
    """
x = torch.ones(2)
k, log = [2], []
class M(type):
    def __len__(cls): return k[0]
class A(metaclass=M):
    def __class_getitem__(cls, item):
        log.append(item)
        return item * k[0]
class N(int):
    def __str__(self): return f'n{k[0]}'
n = N(1)
def f(x): return x * A[3] + len((A, A)), f'{n}', len(A)
""",
    "f(x)", "k.append(k.pop() + 1)", "f(x)", "log",
)  # fmt: skip

stops = equal_to_eager(
    """
x = torch.ones(2)
k = [2]
class M(type):
    def __getattribute__(cls, name):
        return k[0] if name == 'n' else type.__getattribute__(cls, name)
class A(metaclass=M): n = 1
def f(x): return x * getattr(A, 'n')
""",
    "f(x)", "k.append(k.pop() + 1)", "f(x)",
)  # fmt: skip

enum_members = equal_to_eager(
    """
import enum
x = torch.ones(2)
class E(enum.Enum):
    A, B = [1], [2]
def f(x): return x * len(E.A.value) * len(E['B'].value)
""",
    "f(x)", "E.A.value.append(2)", "f(x)", "E.B.value.append(2)", "f(x)",
)  # fmt: skip

missing_attributes = equal_to_eager(
    """
x = torch.ones(2)
class H: pass
h = H()
def g(): pass
def f(x):
    try:
        return x * h.n * getattr(g, 'n', 2)
    except AttributeError:
        return x * getattr(g, 'n', 3)
""",
    "f(x)", "setattr(g, 'n', 5)", "f(x)", "setattr(h, 'n', 7)", "f(x)", "delattr(g, 'n')", "f(x)",
)  # fmt: skip

computed_attributes = equal_to_eager(
    """
x = torch.ones(2)
class H:
    n = 0
    @property
    def p(self):
        self.n += 1
        return self.n
h = H()
def f(x): return x * hasattr(h, 'p') * getattr(h, 'p', 7)
""",
    "f(x)", "f(x)", "h.n",
)  # fmt: skip

own_dicts = equal_to_eager(
    """
x = torch.ones(2)
class H: pass
h = H()
def f(x):
    vars(h)['n'] = vars(h).get('n', 0) + 1
    return x * len(vars(h))
""",
    "f(x)", "f(x)", "h.n", "setattr(h, 'm', 1)", "f(x)",
)  # fmt: skip

method_closures = equal_to_eager(
    """
x = torch.ones(2)
def make():
    log = []
    class H:
        def m(self): log.append(len(log))
    return H, log
H, log = make()
def f(x):
    H().m()
    return x * 2
""",
    "f(x)", "f(x)", "log",
)  # fmt: skip

constructors = equal_to_eager(
    """
x = torch.ones(2, 3)
def f(x): return x * 2, torch.Tensor(x.size()).shape
""",
    "f(x)", "f(x)",
)  # fmt: skip

hidden_members = equal_to_eager(
    """
x = torch.ones(2)
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))
    def forward(self, x): return x + self.w
f = M()
def hide(): object.__setattr__(f, 'w', x * 3)
""",
    "f(x)", "hide()", "f(x)",
)  # fmt: skip

ends = equal_to_eager(
    """
x = torch.ones(2)
ended = []
class A:
    def __del__(self): ended.append(1)
def f(x):
    A()
    return x * len(ended)
""",
    "f(x)", "f(x)", "ended",
)  # fmt: skip

equal_keys = equal_to_eager(
    """
x = torch.ones(2)
class A:
    def __hash__(self): return 1
    def __eq__(self, other): return True
a, b = A(), A()
def f(x): return x * len({a, b})
""",
    "f(x)",
)  # fmt: skip

descriptors = equal_to_eager(
    """
x = torch.ones(2)
class C: pass
c = C()
c.g = torch.Tensor.sin
def f(x): return c.g(x)
""",
    "f(x)", "setattr(c, 'g', torch.Tensor.cos)", "f(x)",
)  # fmt: skip
