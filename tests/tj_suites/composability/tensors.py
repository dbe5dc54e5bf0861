"""Kinds of tensors, arguments and results: sparse, nested, quantized, subclasses, structures."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import nn

from tj_suites.composability.net import data
from tj_suites.composability.python import example, twice
from tj_suites.composability.row import Jit, falls_back, works


def _dense(values: Any) -> list[Any]:
    """Layouts and dense values: what the comparison of results knows."""
    return [[v.layout, v.shape, v.to_dense()] for v in values]


@falls_back("Dynamo does not capture programs that take or make sparse tensors", "sparse Tensor")
def sparse_coo(jit: Jit) -> Any:
    """Sparse COO tensors: as arguments and results, made, multiplied, gradients."""

    def f(s: torch.Tensor, x: torch.Tensor) -> Any:
        return torch.sparse.mm(s, x), s * 2, x.to_sparse(), s.coalesce().values() + 1

    g = jit(f)
    s = example().relu().sub(2).relu().to_sparse()
    found = []
    for _ in range(2):
        product, doubled, made, values = g(s, example().T.contiguous())
        found.append([product, values, *_dense([doubled, made])])
    w = example().T.contiguous().requires_grad_()
    return found, torch.autograd.grad(g(s, w)[0].sum(), w)


@falls_back("Dynamo does not capture programs that take or make sparse tensors", "sparse Tensor")
def sparse_csr(jit: Jit) -> Any:
    """Sparse CSR tensors: as arguments and results."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the beta state, once per process
        s = example().to_sparse_csr()
    g = jit(lambda s, x: (s @ x, s * 3))
    found = []
    for _ in range(2):
        product, scaled = g(s, example().T.contiguous())
        found.append([product, scaled.crow_indices(), scaled.col_indices(), scaled.values()])
    return found


@works
def sparse_gradients(jit: Jit) -> Any:
    """``Embedding(sparse=True)``, whose gradient is sparse, with ``SparseAdam``."""
    torch.manual_seed(0)
    module = nn.Embedding(5, 3, sparse=True)
    g = jit(module)
    optimizer = torch.optim.SparseAdam(list(g.parameters()))
    found = []
    for _ in range(2):
        g(torch.tensor([0, 2, 2])).pow(2).sum().backward()
        grad: Any = module.weight.grad
        found += _dense([grad.coalesce()])
        optimizer.step()
        optimizer.zero_grad()
    return found, module.weight.detach()


@falls_back("rows of unknown number have no symbolic size", "size")
def nested(jit: Jit) -> Any:
    """Nested tensors with the jagged layout: as arguments and results, with gradients."""

    def f(n: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(n, w).sin() * 2

    g = jit(f)
    w = torch.eye(3).requires_grad_()
    found = []
    for rows in ((2, 4), (2, 4), (1, 3)):
        n = torch.nested.nested_tensor([data(r) for r in rows], layout=torch.jagged)
        out = g(n, w)
        found.append([out.values(), out.offsets(), *torch.autograd.grad(out.values().sum(), w)])
    return found


@falls_back("fake tensors cannot be quantized", "quantized")
def quantized(jit: Jit) -> Any:
    """Quantized tensors: made, as arguments and results."""

    def f(q: torch.Tensor, x: torch.Tensor) -> Any:
        made = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
        return q.dequantize() + made.dequantize(), made

    g = jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its deprecation, once per process
        q = torch.quantize_per_tensor(example(), 0.5, 0, torch.qint8)
    return [
        [out, made.int_repr(), made.q_scale(), made.q_zero_point()]
        for out, made in twice(g, q, example())
    ]


@falls_back("Dynamo does not capture packed weights", "graph break")
def dynamic_quantization(jit: Jit) -> Any:
    """A module after ``torch.ao.quantization.quantize_dynamic``."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its deprecation
        module = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(3, 4), nn.ReLU()), {nn.Linear}, dtype=torch.qint8
        )
    return twice(jit(module), data())


class _Pair(NamedTuple):
    size: torch.Size
    tensor: torch.Tensor


@works
def sizes_and_scalars(jit: Jit) -> Any:
    """``torch.Size``, ``dtype``, ``device``, Python scalars and strings, in and out."""

    def f(x: torch.Tensor, size: Any, dtype: torch.dtype, k: Any) -> Any:
        y = x.reshape(size).to(dtype) * (k if isinstance(k, int | float) else 1)
        return _Pair(y.shape, y), y.dtype, y.device, k, y.numel() * 2, x.stride(), None

    g = jit(f)
    cases: list[tuple[Any, ...]] = [
        (torch.Size([3, 2]), torch.float32, 2),
        ((6,), torch.float64, 2.5),
        ([2, 3], torch.int64, True),
        (torch.Size([6, 1]), torch.complex64, 1 + 2j),
        ((6,), torch.float32, "text"),
    ]
    found = [g(example(), *case) for case in cases * 2]
    return found, [type(v).__name__ for result in found for v in (result[0].size, *result[1:])]


@works
def subclasses(jit: Jit) -> Any:
    """``nn.Parameter``, a subclass of it, a plain subclass, as arguments and results."""

    class Named(nn.Parameter):
        pass

    class Plain(torch.Tensor):
        pass

    g = jit(lambda x: (x * 2, x))
    found = []
    for x in (nn.Parameter(example()), Named(example()), example().as_subclass(Plain)):
        for _ in range(2):
            doubled, same = g(x)
            found.append([torch.Tensor(doubled.detach()), type(doubled).__name__, same is x])
    return found


@works
def memory_formats(jit: Jit) -> Any:
    """``channels_last``, expanded, overlapping and zero-stride tensors, empty tensors."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 3)
    g = jit(conv)
    x = torch.randn(2, 3, 5, 5)
    found = [[y, y.stride()] for y in (g(x), g(x.contiguous(memory_format=torch.channels_last)))]
    h = jit(lambda x: (x + 1, x.sum(0), x.contiguous()))
    odd = [torch.ones(1).expand(3), torch.arange(6.0).as_strided((3, 2), (1, 1)), torch.ones(0, 3)]
    return found, [[[y, y.stride()] for y in h(x)] for x in odd * 2]
