"""Parts of modules that are numbers, globals, closures, functions and classes."""

from __future__ import annotations

from collections.abc import Mapping

from tj_conformance.states.part import Part, numbers

__all__ = ["VALUES"]

_OF_A_NUMBER = (
    numbers("m.k#")
    + """
del m.k#
m.k# += 1
"""
)

VALUES: Mapping[str, Part] = {
    "factor": Part(
        """
self.k# = 1
""",
        """
x = x * self.k#
""",
        _OF_A_NUMBER,
    ),
    "summand": Part(
        """
self.k# = 0.5
""",
        """
x = x + self.k# * 2
""",
        _OF_A_NUMBER,
    ),
    "condition": Part(
        """
self.k# = 1
""",
        """
if self.k#: x = x + 1
else: x = x.sin()
""",
        numbers("m.k#"),
    ),
    "divisor": Part(
        """
self.k# = 1
""",
        """
x = x / self.k# if self.k# else x
x = torch.atan2(x, torch.full_like(x, self.k#))
""",
        """
m.k# = 0
m.k# = 0.0
m.k# = -0.0
m.k# = 2
m.k# = 1
m.k# = float('nan')
m.k# = True
""",
    ),
    "range": Part(
        """
self.k# = 1
""",
        """
for _ in range(self.k#): x = x.sin()
""",
        """
m.k# = 0
m.k# = 1
m.k# = 2
m.k# = 3
m.k# = True
m.k# = -1
m.k# = 2.0
""",
    ),
    "kinds of values": Part(
        """
self.k# = 1
""",
        """
if self.k# is None: x = x + 1
elif self.k# == 1: x = x * 3
elif isinstance(self.k#, str): x = x.cos()
else: x = x.sin()
""",
        numbers("m.k#")
        + """
m.k# = 'b'
""",
    ),
    "types": Part(
        """
self.k# = 1
""",
        """
x = x + {int: 1, float: 2, bool: 3}.get(type(self.k#), 4)
""",
        numbers("m.k#"),
    ),
    "counter": Part(
        """
self.c# = 0
""",
        """
self.c# += 1
x = x + self.c#
""",
        """
m.c# = 0
m.c# = 10
m.c# = 0.5
m.c# = torch.zeros(())
m.c# = True
del m.c#
m.register_buffer('c#', torch.zeros(())) if not hasattr(m, 'c#') else None
""",
    ),
    "globals": Part(
        "",
        """
x = x * G + GT
""",
        """
w.here.G = 3.0
w.here.G = 0
w.here.G = -0.0
w.here.G = torch.randn(4)
w.here.G = None
del w.here.G
w.here.GT = torch.randn(4)
GT.add_(1)
w.here.GT = 2.0
GT.requires_grad_()
w.here.GT = GT.double()
w.here.G = True
w.here.G = 2
""",
    ),
    "dict of globals": Part(
        "",
        """
x = x * GD['a'] + sum(GD.values()) + len(GD)
""",
        """
GD['a'] = 2.0
GD['c'] = 1
GD.pop('b')
w.here.GD = {'a': 0.5}
GD['a'] = torch.ones(4)
GD['b'] = True
GD.clear()
GD['a'] = GD.pop('a')
""",
    ),
    "function": Part(
        "",
        """
x = helper(x)
""",
        """
helper.__defaults__ = (3.0,)
helper.__defaults__ = None
helper.__defaults__ = (torch.ones(4),)
w.here.helper = lambda x: x + 1
w.here.helper = torch.sin
w.here.helper = functools.partial(torch.mul, other=2)
helper.__code__ = (lambda x, c=2.0: x - c).__code__
helper.__kwdefaults__ = {'d': 1}
helper.__defaults__ = (0,)
w.here.helper = nn.ReLU()
w.here.helper = Box(2.0).get
""",
    ),
    "closure": Part(
        "",
        """
x = GET(x)
""",
        """
PUT(2.5)
PUT(0)
PUT(-0.0)
PUT(torch.randn(4))
PUT(None)
PUT(True)
w.here.GET, w.here.PUT = make_closure()
GET.__closure__[0].cell_contents = 3
del GET.__closure__[0].cell_contents
PUT('a')
""",
    ),
    "class attribute": Part(
        "",
        """
x = x * self.SCALE#
""",
        """
Net.SCALE# = 3.0
Net.SCALE# = 2
m.SCALE# = 4.0
del m.SCALE#
Net.SCALE# = property(lambda self: 5.0)
Net.SCALE# = torch.ones(4)
del Net.SCALE#
Net.SCALE# = 0
Net.SCALE# = Box(1)
m.SCALE# = torch.ones(4)
""",
        members="SCALE# = 1.5",
    ),
    "method": Part(
        "",
        """
x = self.act#(x)
""",
        """
Net.act# = lambda self, x: x.cos()
m.act# = torch.sigmoid
m.act# = types.MethodType(lambda self, x: x * 2, m)
del m.act#
Net.act# = staticmethod(torch.exp)
m.act# = nn.Tanh()
m.act# = functools.partial(torch.clamp, min=0)
m.act# = functools.partial(torch.clamp, min=-1.0)
m.act# = Act()
Net.act#.__defaults__ = (5,)
Act.forward = lambda self, x: x * 7
Act.k = 2
m.act#.k = 3
m.act# = None
""",
        members="""
def act#(self, x, k=2):
    return x.tanh() * k
""",
    ),
    "activation": Part(
        """
self.fn# = torch.relu
""",
        """
x = self.fn#(x)
""",
        """
m.fn# = torch.tanh
m.fn# = F.relu
m.fn# = F.gelu
m.fn# = functools.partial(F.gelu, approximate='tanh')
m.fn# = nn.ReLU()
m.fn# = lambda x: x + 1
m.fn# = Act()
m.fn# = J(torch.sin)
m.fn# = J(Act())
m.fn# = helper
m.fn# = functools.partial(helper, c=3)
m.fn# = functools.partial(helper, c=3.0)
m.fn# = torch.Tensor.sin
del m.fn#
""",
    ),
    "optional attributes": Part(
        "",
        """
if hasattr(self, 'extra#'): x = x + self.extra#
x = x * getattr(self, 'more#', 1.5)
""",
        """
m.extra# = 1.0
m.extra# = torch.ones(4)
del m.extra#
m.more# = 2
m.more# = torch.ones(4)
del m.more#
m.extra# = nn.Parameter(torch.ones(4))
m.register_buffer('more#', torch.ones(4))
Net.more# = 4.0
Net.extra# = 0
del Net.more#
del Net.extra#
m.extra# = None
""",
    ),
    "surroundings": Part(
        "",
        """
x = x + 1 if torch.is_grad_enabled() else x - 1
x = x * 2 if x.requires_grad else x * 3
x = x + torch.zeros(4, dtype=torch.get_default_dtype())
x = x * 1.5 if torch.is_autocast_enabled('cpu') else x
""",
        "",
    ),
    "gradients off": Part(
        """
self.k# = True
""",
        """
with torch.set_grad_enabled(self.k#): y = x.sin()
x = x + y
""",
        """
m.k# = False
m.k# = True
m.k# = 0
""",
    ),
    "data type": Part(
        """
self.k# = torch.float32
""",
        """
x = x.to(self.k#).float() + 1
""",
        """
m.k# = torch.float64
m.k# = torch.bfloat16
m.k# = torch.int64
m.k# = 'cpu'
m.k# = torch.device('cpu')
m.k# = torch.float32
m.k# = None
""",
    ),
    "shape": Part(
        """
self.k# = (-1, 4)
""",
        """
x = x.reshape(self.k#).reshape(-1, 4)
""",
        """
m.k# = (4, -1)
m.k# = [-1]
m.k# = torch.Size([2, -1])
m.k# = (-1, 2)
m.k# = (5, 5)
m.k# = (-1, 4)
""",
    ),
    "index": Part(
        """
self.k# = 0
""",
        """
x = x + x[self.k#]
""",
        """
m.k# = 1
m.k# = -1
m.k# = slice(0, 1)
m.k# = torch.tensor(0)
m.k# = [0]
m.k# = None
m.k# = ...
m.k# = 50
m.k# = True
m.k# = torch.tensor([0])
m.k# = slice(-1, None)
m.k# = (0, 1)
m.k# = slice(0, 0)
""",
    ),
}
"""Parts by name; ``#`` stands for the number of the part in its program."""
