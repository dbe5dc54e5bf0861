"""Probes of what programs find around them, see `tj_torch.capture.dynamo.probes`."""

from __future__ import annotations

from tj_torch.capture.eager_probe import (
    captured_for_most,
    captured_whole,
    equal_to_eager,
    only_breaks,
)

__all__ = [
    "asserted",
    "causal",
    "constant_tensors",
    "constructors",
    "delayed",
    "distributions",
    "gradients",
    "hooks",
    "imported",
    "numpy_numbers",
    "orders",
    "refused",
    "refused_data",
    "regions",
    "returned",
    "seen_writes",
    "sets",
    "texts",
    "undecided",
    "unguarded",
    "unpacked",
]


def asserted() -> None:
    """See that a view of selected rows is captured, and that it raises where there are others."""
    text = "x = torch.ones(4)\ndef f(m): return x[m].view(3) * 2"
    captured_whole(text, "f(torch.arange(4) > 0)")
    equal_to_eager(text, "f(torch.arange(4) > 0)", "f(torch.arange(4) > 1)")()


def constant_tensors() -> None:
    """See that dimensions of `torch.arange` are known, and numbers of a tensor that is written."""
    text = """
x = torch.ones(2, 3, 4)
def f(x):
    some = torch.tensor([5, 7])
    some[0] = x.numel()
    return x.sum(torch.arange(1, x.dim()).tolist()) * some.tolist()[0]
"""
    captured_whole(text, "f(x)")
    equal_to_eager(text, "f(x)")()


def numpy_numbers() -> None:
    """See that numbers of NumPy are constants, and that it computes with arrays itself."""
    text = """
import numpy as np
x = torch.ones(2, 3)
def f(x):
    n = np.prod(x.shape)
    y = x.view(int(n)) * np.log(2 * np.pi) - np.float64(n) / 3
    return y, n, np.array([1.0, 2.0]).sum()
"""
    equal_to_eager(text, "f(x)")()
    text = text.replace(", np.array([1.0, 2.0]).sum()", "")
    captured_whole(text, "f(x)")


def causal() -> None:
    """See that a transformer with a causal mask is captured, and that others have their results."""
    text = """
from torch.nn import Transformer, TransformerEncoder, TransformerEncoderLayer
m = TransformerEncoder(TransformerEncoderLayer(4, 1, 4, 0.0), 1, enable_nested_tensor=False)
x, mask = torch.ones(3, 1, 4), Transformer.generate_square_subsequent_mask(3)
def f(x, mask): return m(x, mask)
"""
    captured_whole(text, "f(x, mask)")
    equal_to_eager(text, "f(x, mask)", "f(x, mask.t())", "f(x, mask)")()


def refused_data() -> None:
    """See that a program that raises for some data is captured, and that it raises for them."""
    text = """
x = torch.ones(2)
def f(x, y):
    if x.sum() < y: raise ValueError("small")
    if not (x > 0).all(): raise ValueError(f"not positive: {x}")
    return x * 2
"""
    captured_whole(text, "f(x, x.new_zeros(()))")
    calls = "f(x, x.new_ones(()))", "f(x, x.new_ones(()) * 5)", "f(-x, -x.sum())"
    equal_to_eager(text, *calls)()


def distributions() -> None:
    """See that distributions are captured whole with their checks, which raise."""
    text = """
from torch.distributions import Bernoulli, Normal, kl_divergence
x = torch.rand(2)
def f(x):
    known = Normal(x, x, validate_args=True), Normal(x * 2, x, validate_args=True)
    return Bernoulli(x, validate_args=True).log_prob(x.round()), kl_divergence(*known)
"""
    captured_whole(text, "f(x)")
    equal_to_eager(text, "f(x)", "f(-x)", "f(x)")()


def gradients() -> None:
    """See that gradients in a program are captured, and that results used up by them raise."""
    text = """
x = torch.ones(2)
w = torch.tensor([1., 2.], requires_grad=True)
def f(x):
    x = x.detach().requires_grad_()
    y = (x * x * w).sum()
    return y, *torch.autograd.grad(y, x)
def g(x):
    with torch.enable_grad():
        y, found = f(x)
        try: y.backward()
        except RuntimeError as error: return found, found.requires_grad, str(error)
"""
    captured_whole(text, "f(x)")
    equal_to_eager(text, "g(x)")()


constructors = equal_to_eager(
    """
from torch.overrides import TorchFunctionMode
x = torch.ones(3)
class Doubled(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made * 2 if func is torch.arange else made
def f(x):
    with Doubled():
        y = x + torch.arange(3)
    return y
""",
    "f(x)", "f(x)",
)  # fmt: skip

unguarded = equal_to_eager(
    """
x = torch.ones(2)
def g(a: 2): return a
def f(x, r): return x * sum(r) * g.__annotations__['a']
""",
    "f(x, range(3))", "f(x, range(1, 5))", "setattr(g, '__annotations__', {'a': 5})",
    "f(x, range(3))",
)  # fmt: skip

unpacked = equal_to_eager(
    """
x = torch.ones(2)
def g(a, b, c): return a + 10 * b + 100 * c
def f(x, r): return x * g(*range(3)) + g(*r)
""",
    "f(x, range(1, 4))", "f(x, range(6, 0, -2))",
)  # fmt: skip

refused = equal_to_eager(
    """
x = torch.ones(2)
def f(x, k):
    with torch.set_grad_enabled(k):
        x = x * 2
    for _ in range(k):
        x = x + 1
    return x
""",
    "f(x, True)", "f(x, 1)", "f(x, False)", "f(x, 2.0)",
)  # fmt: skip

returned = equal_to_eager(
    """
p = torch.ones(2, requires_grad=True)
p.grad = torch.ones(2)
@torch.no_grad()
def f(p):
    p.mark = 1
    p -= p.grad
    p.grad = None
    return p.mark
""",
    "f(p)", "p.grad is None",
)  # fmt: skip

imported = equal_to_eager(
    """
import sys, types
x = torch.ones(2)
def put(k):
    sys.modules['tj_probed'] = m = types.ModuleType('tj_probed')
    m.k = k
put(2)
def f(x):
    import tj_probed
    return x * tj_probed.k
""",
    "f(x)", "put(3)", "f(x)", "sys.modules.pop('tj_probed') and None",
)  # fmt: skip

orders = equal_to_eager(
    """
from collections import OrderedDict
x = torch.ones(2)
o, p = OrderedDict(a=1, b=2), OrderedDict(a=1, b=2)
def f(x): return x * (2 if o == p else 3)
""",
    "f(x)", "o.move_to_end('a')", "f(x)",
)  # fmt: skip

sets = equal_to_eager(
    """
x = torch.ones(2)
def made(): return {3, *[1]}, set(range(9, 0, -4)) - {5}
def f(x, s): return x * 2, [*s], [*map(list, made())]
""",
    "f(x, {8, 0})", "f(x, {0, 8})",
)  # fmt: skip

sought = equal_to_eager(
    """
x = torch.ones(2)
def f(x, n, m): return x * 2, 2 in (n, m), 2 in {"n": n, "m": m}.values()
""",
    "f(x, 3, 4)", "f(x, 5, 6)", "f(x, 7, 2)", "f(x, 2, 8)",
)  # fmt: skip

texts = equal_to_eager(
    """
from collections import OrderedDict
x = torch.ones(2)
def f(x): return x * 2, str(OrderedDict(a=1))
""",
    "f(x)",
)  # fmt: skip

delayed = equal_to_eager(
    """
x = torch.ones(2)
class C:
    a = 1
    def __str__(self): return f"C {self.a}"
c = C()
def f(x):
    c.a += 1
    return f"{x}", "{}".format(c), x.add_(1)
""",
    "f(x)", "f(x)",
)  # fmt: skip

hooks = equal_to_eager(
    """
k = [1.0]
x = torch.ones(2, requires_grad=True)
def f(x):
    y = x * 2
    y.register_hook(lambda g: g * k[0])
    return y.sin()
def g(x):
    y = f(x).sum()
    k[0] += 1
    return torch.autograd.grad(y, x)
""",
    "f(x)", "g(x)", "g(x)",
)  # fmt: skip

seen_writes = equal_to_eager(
    """
k = 1
@torch.library.custom_op("tj_probe::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor: return x * k
scaled.register_fake(torch.empty_like)
x = torch.ones(2)
def f(x):
    global k
    k = 2
    return scaled(x)
""",
    "f(x)", "setattr(f, 'n', f.__globals__.update(k=1))", "f(x)",
)  # fmt: skip

regions = equal_to_eager(
    """
class Layer(torch.nn.Module):
    k = 2
    @torch.compiler.nested_compile_region
    def forward(self, x): return x * self.k
layers = torch.nn.Sequential(Layer(), Layer(), Layer())
x = torch.ones(2)
def f(x): return layers(x)
""",
    "f(x)", "setattr(layers[2], 'k', 3)", "f(x)",
)  # fmt: skip

numpy_types = equal_to_eager(
    """
import numpy
x = torch.ones(2)
def f(x, n): return x * 2 if isinstance(n, float) and hasattr(n, 'is_integer') else x
""",
    "f(x, numpy.float64(1))", "f(x, numpy.array(1.0))",
)  # fmt: skip


def undecided() -> None:
    """See that no frame is left to Python where a program decides on data, or on a size of it."""
    text = """
def f(x):
    y = x[x > 0]
    return y * 2 if {} else x
"""
    calls = "f(torch.ones(2))", "f(-torch.ones(2))"
    captured_for_most(text.format("len(y)"), *calls)
    only_breaks(text.format("int(y.sum()) > 1"), *calls)
