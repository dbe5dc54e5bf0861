"""Small programs that show whether a correction of Dynamo has an effect in this PyTorch.

Each compares a program in eager with itself under ``tj.jit``. Without its correction the two differ
in some version of PyTorch; a name that is still there and is asked for nothing any more is found by
that. A program that falls back to eager is right.
"""

from __future__ import annotations

import warnings

import tj_core as tj
import torch

from tj_torch.capture.eager_probe import equal_to_eager, jitted, scope_of
from tj_torch.torch_private.composable import NAMES

__all__ = ["captured", "graph_breaks", "sharded_modules", "stances"]


def captured() -> None:
    """See that a program is captured: one that falls back is right, and nothing is compiled."""
    with scope_of(_EXAMPLE) as scope, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f, args = scope["f"], (torch.ones(2, 3), torch.ones(3, 3))
        program = jitted(f, tj.Session(["torch"]))
        assert torch.equal(program(*args), f(*args)), "the result is another than eager's"
        fallbacks = [fallback.reason for fallback in tj.stats(program).fallbacks]
        assert not fallbacks, fallbacks[0]
        assert "gelu" in str(tj.last_trace(program)), "the program has no trace"


def stances() -> None:
    """See that a stance of PyTorch's keeps a program from being compiled."""
    with scope_of(_STANCES) as scope:
        program, x = jitted(scope["f"], tj.Session(["torch"])), torch.ones(2)
        with torch.compiler.set_stance("force_eager"):
            assert torch.equal(program(x), x), "a program is compiled in spite of it"


_STANCES = """
def f(x):
    return x + 1 if torch.compiler.is_compiling() else x
"""


def graph_breaks() -> None:
    """See that both fragments of a program say where its graph break is."""
    with scope_of(_BROKEN) as scope, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = jitted(scope["f"], tj.Session(["torch"]))
        program(torch.ones(2))
        first, second = tj.programs(program)
        assert first.ended is not None, "nothing ends the first fragment"
        assert second.after == first.ended, "the second fragment begins elsewhere"
        assert first.guards, "the first fragment has no guards"


_BROKEN = """
def f(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()
"""


def sharded_modules() -> None:
    """See that PyTorch finds the state of a managed module by the jitted one, too."""
    get, insert = (NAMES[name].find() for name in NAMES)
    module, state = torch.nn.Linear(2, 2), _Managed()
    insert(module, state)
    assert get(tj.jit(module)) is state, "the state is not found"


class _Managed:
    """Stand-in for the state of a sharded module."""


_EXAMPLE = """
def f(x, w):
    y = torch.nn.functional.gelu(x @ w)
    return y / y.sum(-1, keepdim=True)
"""

lazy_modules = equal_to_eager(
    """
m = torch.nn.LazyLinear(2)
x = torch.ones(1, 3)
def f(x): return m(x)
""",
    "f(x)", "f(x)", "torch.rand(1)",
)  # fmt: skip

missing_keys = equal_to_eager(
    """
x = torch.ones(2)
d = {}
def f(x):
    try:
        return x * d['k']
    except KeyError:
        return x
""",
    "f(x)", "d.update(k=2)", "f(x)",
)  # fmt: skip

context_variables = equal_to_eager(
    """
import contextvars
x = torch.ones(2)
v = contextvars.ContextVar('v')
def f(x):
    try:
        return x * v.get()
    except LookupError:
        return x + 1
""",
    "f(x)", "v.set(3) and None", "f(x)",
)  # fmt: skip

dicts = equal_to_eager(
    """
x = torch.ones(2)
class P: pass
def f(x):
    p = P()
    d = vars(p)
    p.a = 1
    return x + 1, p, d
def g(x):
    _, p, d = f(x)
    return d is vars(p), d
""",
    "g(x)",
)  # fmt: skip

exceptions = equal_to_eager(
    """
x = torch.ones(2)
def f(x):
    try:
        raise KeyError('q')
    except KeyError as e:
        return x + 1, f'{e}', str(e), repr(e), e.args
def g(x):
    try:
        return f(x).no
    except AttributeError as e:
        return e.name
""",
    "f(x)", "g(x)",
)  # fmt: skip

contexts = equal_to_eager(
    """
x = torch.ones(2)
def f(x):
    c = torch.no_grad()
    c.__enter__()
    y = x + 1
    torch._dynamo.graph_break()
    z = y * 2
    c.__exit__(None, None, None)
    return z, torch.is_grad_enabled()
""",
    "f(x)", "f(x)", "torch.is_grad_enabled()",
)  # fmt: skip

sizes_after_writes = equal_to_eager(
    """
def f(x):
    y = x + 1
    y.unsqueeze_(0)
    n = y.shape[0], y.dim()
    return y, n
""",
    "f(torch.ones(3))",
)  # fmt: skip

lstm_states = equal_to_eager(
    """
m = torch.nn.LSTM(2, 3, 2, batch_first=True)
def f(x):
    with torch.no_grad():
        out, (h, c) = m(x)
    return out.shape, h.shape, c.shape
""",
    "f(torch.ones(1, 4, 2))",
)  # fmt: skip

attributes = equal_to_eager(
    """
x = torch.zeros(2, 2, requires_grad=True)
def f(x):
    with torch.no_grad():
        t = x.T
    return t
def g(x):
    t = f(x)
    return t, t.requires_grad
""",
    "g(x)", "g(x)",
)  # fmt: skip

unseen = equal_to_eager(
    """
x = torch.ones(2)
def f(x):
    p = x.data_ptr()
    torch._dynamo.graph_break()
    return x + 1, p == x.data_ptr()
""",
    "f(x)", "f(x.clone())",
)  # fmt: skip

overriding = equal_to_eager(
    """
class T(torch.Tensor):
    def __add__(self, other): return 7
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})
x = torch.ones(2).as_subclass(T)
def f(x): return x + 1
""",
    "f(x)",
)  # fmt: skip

scopes = equal_to_eager(
    """
x = torch.ones(2)
scope = {'__name__': 'math', 'k': 2}
exec('def g(x): return x * k', scope)
g = scope['g']
import tempfile
before = tempfile.template
def f(x): return g(x) * len(tempfile.gettempprefix())
""",
    "f(x)", "scope.update(k=3)", "f(x)",
    "setattr(tempfile, 'template', before + 'a')", "f(x)",
    "setattr(tempfile, 'template', before)",
)  # fmt: skip

hidden = equal_to_eager(
    """
x = torch.ones(2)
def f(x): return x * len((1, 2))
""",
    "f(x)", "globals().update(len=lambda v: 5)", "f(x)", "globals().pop('len') and None", "f(x)",
)  # fmt: skip

keywords = equal_to_eager(
    """
x = torch.ones(2)
def g(a, **kw): return a, kw
def f(x, n):
    try:
        return x + 1, g(1, **{n: 2})
    except TypeError:
        return x
""",
    "f(x, 'a')", "f(x, 'b')", "f(x, 'a')",
    leaves_frames=True,  # the error in `f` is one of a call that cannot be bound
)  # fmt: skip

identity = equal_to_eager(
    """
x = torch.ones(2)
class H: pass
h = H()
h.a, h.b = object(), object()
h.now = h.a
def f(h, x):
    if h.now is h.a:
        h.now = h.b
        return x + 1
    h.now = h.a
    return x - 1
""",
    "f(h, x)", "f(h, x)", "f(h, x)",
)  # fmt: skip

draws = equal_to_eager(
    """
import random
x = torch.ones(2)
r = random.Random(5)
def f(x): return x * r.random(), r.randint(0, 9)
""",
    "f(x)", "f(x)", "r.random()",
)  # fmt: skip

texts = equal_to_eager(
    """
def f(x, k):
    n = x.shape[0]
    return x + 1, f'{k:>5} {n:>5}', round(n, -1), divmod(n, 2), format(n, '>4')
""",
    "f(torch.ones(17), 3)", "f(torch.ones(25), 4)", "f(torch.ones(34), 5)",
)  # fmt: skip

operators = equal_to_eager(
    """
x = torch.ones(2)
def f(x, a): return x + 1, a * 0, -a * 0
""",
    "f(x, 1.5)", "f(x, -2.5)", "f(x, 3.5)", "f(x, -4.5)",
)  # fmt: skip

zeros = equal_to_eager(
    """
x = torch.ones(2)
def f(x, a): return x / a
""",
    "f(x, 0.0)", "f(x, -0.0)", "f(x, 2.0)", "f(x, -0.0)",
)  # fmt: skip

iterators = equal_to_eager(
    """
x = torch.ones(2)
log = []
def g(x):
    log.append(1)
    yield x + 1
    log.append(2)
    return 5
def f(x): return g(x)
def run(x):
    made = f(x)
    before = list(log)
    return type(made).__name__, before, list(made), list(log), log.clear()
""",
    "run(x)", "run(x)",
)  # fmt: skip

remembering = equal_to_eager(
    """
import functools
x = torch.ones(2)
log = []
@functools.lru_cache
def g(n):
    log.append(n)
    return n + 1
def f(x): return x * g(2)
""",
    "f(x)", "f(x)", "log",
)  # fmt: skip

deques = equal_to_eager(
    """
from collections import deque
x = torch.ones(2)
d = deque([1, 2, 3], maxlen=3)
def f(o, x):
    o.appendleft(9)
    return x + 1
""",
    "f(d, x)", "f(d, x)", "d",
)  # fmt: skip

sets = equal_to_eager(
    """
x = torch.ones(2)
class S(set):
    def add(self, v): super().add(v + 1)
s = S([1])
def f(x):
    s.add(5)
    return x + 1, 6 in s
""",
    "f(x)", "sorted(s)", "f(x)",
)  # fmt: skip

order = equal_to_eager(
    """
from collections import OrderedDict
x = torch.ones(2)
o = OrderedDict(a=1, b=2)
def f(o, x):
    o.move_to_end('a')
    return x + 1, list(o)
""",
    "f(o, x)", "list(o)", "f(o, x)", "list(o)",
)  # fmt: skip

inside = equal_to_eager(
    """
x = torch.ones(2)
def f(x): return x + 1, [x, x + 1].count(x), x in [x + 1]
""",
    "f(x)", "f(x[:1])",
)  # fmt: skip

greatest = equal_to_eager(
    """
def f(x):
    a, b = x[0], x[1]
    m = max(a, b)
    return m is a, m, min(a, b)
""",
    "f(torch.tensor([2., 1.]))", "f(torch.tensor([1., 2.]))", "f(torch.tensor([1., 1.]))",
)  # fmt: skip

sizes = equal_to_eager(
    """
from torch.utils import _pytree as pytree
def f(x): return x + 1, pytree.tree_map(lambda n: n * 2, x.shape)
""",
    "f(torch.ones(2))",
)  # fmt: skip

errors_of_data = equal_to_eager(
    """
x = torch.ones(3)
def handled(x, i):
    try:
        y = torch.embedding(x.reshape(3, 1), i)
    except IndexError:
        return x * 2
    return y + 1
def g(x):
    assert (x > 0).all(), 'negative'
    return x + 1
def written(x, i):
    y = x.clone()
    try:
        y[i] = 3.0
    except IndexError as error:
        raise ValueError('mine') from error
    return y
def f(x, i=None, which=0): return g(x) if i is None else (handled, written)[which](x, i)
""",
    "f(x, torch.tensor([1]))", "f(x, torch.tensor([7]))", "f(x)", "f(-x)",
    "f(x, torch.tensor([1]), 1)", "f(x, torch.tensor([7]), 1)",
)  # fmt: skip

unassignable = equal_to_eager(
    """
x = torch.ones(2)
class H:
    a = 1
h = H()
def f(x):
    try:
        del h.a
    except AttributeError:
        return x * 2
    return x
def set_(x):
    try:
        x.grad = torch.ones(5)
    except RuntimeError:
        return x * 3
    return x
f_ = f
def f(x, which=0): return set_(x) if which else f_(x)
""",
    "f(x)", "f(x)", "f(x, 1)",
)  # fmt: skip

functions = equal_to_eager(
    """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.k = k
        ctx.set_materialize_grads(False)
        return a * b, a + b
    @staticmethod
    def backward(ctx, g, h):
        return (g * 3 * ctx.k[0], h) if h is not None else (g * 5 * ctx.k[0], g)
k = [1]
def f(a, b): return F.apply(a, b)
def run():
    x = torch.ones(2, requires_grad=True)
    a, b = f(x * 2.5, x)
    k[0] = 2
    a.sum().backward()
    k[0] = 1
    return a, x.grad
""",
    "run()", "run()",
)  # fmt: skip

strides = equal_to_eager(
    """
def f(x):
    y = torch.nn.functional.softplus(x.t())
    return y, y.stride()
""",
    "f(torch.rand(3, 4))",
)  # fmt: skip
