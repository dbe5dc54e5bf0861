"""Tools of PyTorch around and under a jitted program: transforms, tracers, modes, settings."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils import flop_counter

from tj_suites.composability.net import Net, data, jitted_net, state, step
from tj_suites.composability.python import example
from tj_suites.composability.row import Jit, falls_back, works, works_but

# --------------------------------------------------------------------------- transforms


def _energy(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


@falls_back("a transform of `torch.func` gives operations another meaning", "torch.func")
def functional_transforms(jit: Jit) -> Any:
    """``torch.func``'s ``vmap``, ``grad``, ``jvp``, ``vjp``, ``hessian`` over a jitted function."""
    g, x = jit(_energy), example()[0]
    return (
        torch.func.vmap(g)(example()),
        torch.func.grad(g)(x),
        torch.func.jvp(g, (x,), (x,)),
        torch.func.vjp(g, x)[1](torch.tensor(2.0)),
        torch.func.hessian(g)(x),
        g(x),
    )


@works
def transforms_inside(jit: Jit) -> Any:
    """``torch.func``'s ``vmap`` and ``grad`` in a jitted function, per-sample gradients too."""
    _, net = jitted_net(lambda m: m)
    net.eval()
    values = {name: p.detach() for name, p in net.named_parameters()}

    def loss(values: Any, x: torch.Tensor) -> Any:
        return torch.func.functional_call(net, values, (x[None],)).pow(2).sum()

    samples = jit(lambda v, x: torch.func.vmap(torch.func.grad(loss), (None, 0))(v, x))
    f = jit(lambda x: (torch.func.vmap(_energy)(x), torch.func.grad(_energy)(x[0])))
    return [f(example()) for _ in range(2)], list(samples(values, data()).items())


@falls_back("forward-mode AD carries tangents that a compiled program does not", "forward-mode")
def forward_mode(jit: Jit) -> Any:
    """Forward-mode AD: dual numbers through a jitted function."""
    g = jit(_energy)
    found: list[Any] = [g(example())]
    with forward_ad.dual_level():
        out = g(forward_ad.make_dual(example(), torch.ones(2, 3)))
        found += [forward_ad.unpack_dual(out).primal, forward_ad.unpack_dual(out).tangent]
    return found, g(example())


# --------------------------------------------------------------------------- tracers


@falls_back("the exporter traces the program itself", "a dispatch mode")
def exported(jit: Jit) -> Any:
    """``torch.export`` of a jitted module."""
    g, net = jitted_net(jit)
    g.eval()
    before = g(data())
    program = torch.export.export(net if g is net else g, (data(),))
    return before, program.module()(data()), g(data()), sorted(program.state_dict)


@works
def compiled_around(jit: Jit) -> Any:
    """``torch.compile`` of a jitted function and of a function that calls a jitted module."""
    g, net = jitted_net(jit)
    inner = jit(_energy)
    outer = torch.compile(lambda x: g(x) + inner(x), backend="eager")
    whole = torch.compile(inner, backend="eager")
    return [[outer(data()), whole(data())] for _ in range(2)], state(net)


@works
def compiled_inside(jit: Jit) -> Any:
    """A jitted function that calls a compiled one, and one jitted twice."""
    _, net = jitted_net(lambda m: m)
    inner = torch.compile(net, backend="eager")
    g = jit(lambda x: inner(x) * 2)
    twice_jitted = jit(jit(_energy))
    return [[g(data()), twice_jitted(data())] for _ in range(2)], state(net)


@falls_back("the tracer records the program itself", "torch.fx.symbolic_trace")
def symbolically_traced(jit: Jit) -> Any:
    """``torch.fx.symbolic_trace`` of a jitted function."""
    g = jit(_energy)
    before = g(example())
    traced = torch.fx.symbolic_trace(g)
    return before, traced(example()), [node.op for node in traced.graph.nodes], g(example())


@falls_back("the tracer records the program itself", "torch.jit.trace")
def jit_traced(jit: Jit) -> Any:
    """``torch.jit.trace`` of a jitted function and of a jitted module."""
    g, _ = jitted_net(jit)
    g.eval()
    found = [g(data())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for f in (g, jit(_energy)):
            found.append(torch.jit.trace(f, (data(),), check_trace=False)(data() + 1))
    return found, g(data())


# --------------------------------------------------------------------------- modes


@falls_back("fake tensors hold no data", "a dispatch mode")
def fake_mode(jit: Jit) -> Any:
    """``FakeTensorMode``: shapes without data."""
    g, _ = jitted_net(jit)
    g.eval()
    before = g(data())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = g(mode.from_tensor(data(5)))
    return before, out.shape, out.dtype, g(data())


@falls_back("a mode sees each operation as the program calls it", "a dispatch mode")
def counting_flops(jit: Jit) -> Any:
    """``FlopCounterMode``, and what else is a dispatch mode."""
    g, _ = jitted_net(jit)
    g(data())
    with flop_counter.FlopCounterMode(display=False) as counter:
        out = g(data())
    return out, counter.get_total_flops(), g(data())


@works_but("labels of `record_function` inside of a program are left out of the profile")
def profiled(jit: Jit) -> Any:
    """``torch.profiler`` and ``record_function`` around a jitted function."""
    g = jit(lambda x: x.sin() + 1)
    found = [g(example())]
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with profiler as profile, torch.profiler.record_function("outer"):
        found.append(g(example()))
    names = {event.key for event in profile.key_averages()}
    return found, {"outer", "aten::sin", "aten::add"} <= names


@works
def grad_modes(jit: Jit) -> Any:
    """``no_grad``, ``inference_mode``, ``set_grad_enabled``: around, inside, as decorators."""

    def f(x: torch.Tensor) -> Any:
        with torch.no_grad():
            frozen = x * 2
        with torch.inference_mode():
            inferred = x * 3
        return frozen + x, inferred

    g, plain = jit(f), jit(lambda x: x * 2)
    x = example().requires_grad_()
    found = []
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            outs = (*g(x), plain(x), jit(mode()(lambda x: x * 5))(x))
        found.append([[o.detach(), o.requires_grad, o.is_inference()] for o in outs])
    return found, torch.autograd.grad(g(x)[0].sum(), x)


@works
def saved_tensors_hooks(jit: Jit) -> Any:
    """``saved_tensors_hooks`` and ``save_on_cpu`` around a jitted module."""
    g, net = jitted_net(jit)
    found = [step(g, data())]
    with torch.autograd.graph.save_on_cpu():
        found.append(step(g, data()))
    return found, step(g, data()), state(net)


# --------------------------------------------------------------------------- settings


@contextlib.contextmanager
def _restored(get: Any, put: Any) -> Iterator[None]:
    before = get()
    try:
        yield
    finally:
        put(before)


@works
def default_dtype(jit: Jit) -> Any:
    """``set_default_dtype`` changed between calls."""
    g = jit(lambda x: (torch.ones(3) + x, torch.tensor(0.5), x * 2.5, torch.get_default_dtype()))
    found = [g(torch.ones(3, dtype=torch.int64))]
    with _restored(torch.get_default_dtype, torch.set_default_dtype):
        for dtype in (torch.float64, torch.float16, torch.float32):
            torch.set_default_dtype(dtype)
            found.append(g(torch.ones(3, dtype=torch.int64)))
    return found, g(torch.ones(3, dtype=torch.int64))


@works
def default_device(jit: Jit) -> Any:
    """``set_default_device`` and ``with torch.device(...)`` between calls."""
    g = jit(lambda: torch.ones(3) * 2)
    found = [g()]
    try:
        torch.set_default_device("meta")
        found.append([g().device, g().shape])
    finally:
        torch.set_default_device(None)
    with torch.device("meta"):
        found.append([g().device])
    return found, g()


@works
def deterministic(jit: Jit) -> Any:
    """``use_deterministic_algorithms`` changed between calls, which also fills memory."""
    f = jit(lambda x, i: (torch.empty(3).isnan(), x.index_add(0, i, x), x.cumsum(0)))
    g = jit(lambda x: torch.empty(3).isnan().all() | x.isnan().any())
    index = torch.tensor([0, 0])
    found = [f(example(), index)[1:]]
    try:
        torch.use_deterministic_algorithms(True)
        found += [f(example(), index), g(example())]
        torch.use_deterministic_algorithms(True, warn_only=True)
        found += [f(example(), index), g(example())]
    finally:
        torch.use_deterministic_algorithms(False)
    return found, f(example(), index)[1:]


@works
def settings(jit: Jit) -> Any:
    """``set_num_threads``, ``set_float32_matmul_precision``, attention kernels, anomaly mode."""
    g, net = jitted_net(jit)
    attend = jit(torch.nn.functional.scaled_dot_product_attention)
    q = data(4).reshape(1, 1, 4, 3)
    found = [step(g, data()), attend(q, q, q)]
    with _restored(torch.get_num_threads, torch.set_num_threads):
        torch.set_num_threads(2)
        found.append(step(g, data()))
    with _restored(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision):
        torch.set_float32_matmul_precision("medium")
        found.append(step(g, data()))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        found.append(attend(q, q, q))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anomaly mode says that it is slow
        with torch.autograd.detect_anomaly(check_nan=False):
            found.append(step(g, data()))
    return found, step(g, data()), state(net)


# --------------------------------------------------------------------------- objects


def _called(g: Any) -> list[torch.Tensor]:
    """Results of a child process, as lists of numbers, since tensors travel by shared memory."""
    found: list[torch.Tensor] = [value.tolist() for value in step(g, data())]
    return found


@works
def spawned(jit: Jit) -> Any:
    """A jitted module sent to a process that was spawned."""
    g, _ = jitted_net(jit)
    g(data())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(_called, (g,))
    return found, step(g, data())


@works
def weak_references(jit: Jit) -> Any:
    """Weak references to jitted functions and modules, which are freed like others."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    g, (h, net) = jit(f), jitted_net(jit)
    references = [weakref.ref(v) for v in (g, h, net)]
    found = [g(example()), h(data()), [r() is not None for r in references]]
    del f, g, h, net
    gc.collect()
    return found, [r() is None for r in references]


@works
def recurrent(jit: Jit) -> Any:
    """``LSTM``, ``GRU`` and cells: states, layers, both directions; training."""
    found = []
    for make in (
        lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True),
        lambda: nn.GRU(3, 4),
        lambda: nn.RNN(3, 4, nonlinearity="relu"),
        lambda: nn.LSTMCell(3, 4),
    ):
        torch.manual_seed(0)
        module = make()
        g = jit(module)
        x = data(4) if isinstance(module, nn.LSTMCell) else data(4).reshape(2, 2, 3)
        for _ in range(2):
            out, *states = g(x)
            out.sum().backward()
            found.append([out, states, [p.grad for p in module.parameters()]])
            module.zero_grad()
    return found


@works
def attention(jit: Jit) -> Any:
    """``MultiheadAttention`` and ``TransformerEncoderLayer``, training and the fast path."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
    attend = nn.MultiheadAttention(4, 2, batch_first=True)
    g, h = jit(layer), jit(attend)
    x = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
    mask = torch.tensor([[False, False, True], [False, False, False]])
    found = [step(g, x), *h(x, x, x), h(x, x, x, need_weights=False)[0]]
    g.eval(), h.eval()
    with torch.no_grad():
        found += [g(x), *h(x, x, x, key_padding_mask=mask)]
    return found, g(x, src_key_padding_mask=mask)


def _plain(x: torch.Tensor) -> Any:
    return Net.forward(Net(), x)


@falls_back("Dynamo does not make parameters", "torch.nn.Parameter()")
def modules_inside(jit: Jit) -> Any:
    """Modules that the program makes itself, with their random initial values."""
    g = jit(_plain)
    torch.manual_seed(0)
    return [g(data()) for _ in range(2)], torch.rand(2)
