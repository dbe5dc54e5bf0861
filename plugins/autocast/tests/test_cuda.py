"""Autocast's lists for CUDA, on fake tensors: its casts can be seen without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_autocast.transform import lower_autocast
from tj_core.extend import (
    BoundSymbol,
    Constant,
    Context,
    PassContext,
    Proxy,
    Symbol,
    Trace,
    bind_outputs,
    leaves,
    map_tree,
)
from tj_suites.autocast.lists import entries
from tj_torch.extend import AUTOCAST, TorchDialects, is_on, resolve, tensor_proxy, to_core_tree
from tj_torch.internal import to_core
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

FAKES = FakeTensorMode()

with FAKES:
    LISTED = {name: rest for name, *rest in entries("cuda")}

NOT_FAKE = {
    "equal": "asks for values",
    "cudnn_": "is not in builds of PyTorch for CPUs",
    "einsum": "the list gives a text as its arguments, which PyTorch's tests leave out",
    "gru_cell": "PyTorch's kernel for CUDA has no form for fake tensors",
}
"""Operations that fake tensors cannot run here."""

if not torch.backends.cuda.is_built():
    NOT_FAKE["grid_sampler"] = "its form for fake tensors asks for the device, to take an item"

STAYS = {"bilinear": "without a policy, as on CPUs, its kernel would run under autocast"}
"""Operations that stay under autocast: their casts are not made by tj."""

UNDER_AUTOCAST = Context.of(**{"grad": False, AUTOCAST + "cuda": "float16"})

Ran = tuple[str, tuple[str, ...]]


class Recorder(TorchDispatchMode):
    """Records the operators that run, with the data types of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[Ran] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is not torch.ops.prim.device.default:  # autocast asks fake tensors where they are
            given = pytree.tree_leaves((args, kwargs))
            self.ran.append((str(op), tuple(str(x.dtype) for x in given if tensor(x))))
        return op(*args, **(kwargs or {}))


def tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


@pytest.fixture(autouse=True)
def _with_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``torch.autocast("cuda")`` does nothing where no GPU is."""
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    yield
    torch.clear_autocast_cache()


@pytest.fixture(scope="module")
def session() -> tj.Session:
    return tj.Session(("autocast", "autograd", "torch"))


def eager(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[list[Ran], Any]:
    with FAKES, torch.no_grad(), Recorder() as recorder, torch.autocast("cuda", torch.float16):
        return recorder.ran, function(*args, **kwargs)


def program(
    session: tj.Session, function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[Trace, dict[str, FakeTensor]]:
    """A call under autocast as a trace, and the values of its inputs."""
    dialects = session.expand.require(BoundSymbol(Symbol("torch", "add"))).value
    assert isinstance(dialects, TorchDialects)
    values: dict[str, FakeTensor] = {}

    def leaf(value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return to_core(value)
        values[name := f"x{len(values)}"] = value
        return tensor_proxy(name, value, dialects.sizes.dim)

    given, named_args = to_core_tree((tuple(args), kwargs), leaf)
    named = dialects.names.symbol(function, tuple(given), named_args)
    call = BoundSymbol(
        named.symbol, named.args, tuple(named.kwargs.items()), context=UNDER_AUTOCAST
    )
    facts = dialects.expand(call, function, dialects.modes())
    call = bind_outputs(call, facts, lambda i: f"y{i}")
    inputs = tuple(p for p in leaves((given, named_args)) if isinstance(p, Proxy))
    context = Context.of(grad=False)
    return Trace(inputs, (call,), call.outputs, context=context, language=session.language), values


def run(trace: Trace, env: dict[str, Any]) -> tuple[list[Ran], Any]:
    """Run the calls of ``trace`` on the values in ``env``; return the operators and the results."""

    def value(leaf: Any) -> Any:
        if isinstance(leaf, Proxy):
            return env[leaf.name]
        return leaf.value if isinstance(leaf, Constant) else leaf

    with FAKES, torch.no_grad(), Recorder() as recorder:
        for call in trace.calls:
            args, kwargs = map_tree(value, (call.args, dict(call.kwargs)))
            made = pytree.tree_leaves(resolve(call.symbol)(*args, **kwargs))
            env |= {p.name: x for p, x in zip(call.flat_outs, made, strict=True)}
        return recorder.ran, map_tree(value, trace.outputs)


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore:torch.chain_matmul", "ignore:Using torch.cross")
@pytest.mark.parametrize("name", LISTED)
def test_an_operation_of_the_lists(session: tj.Session, name: str) -> None:
    function, args, kwargs = LISTED[name]
    if any(part in name for part in NOT_FAKE):
        with pytest.raises((RuntimeError, AssertionError, TypeError)):
            eager(function, args, kwargs)
        return
    ran, expected = eager(function, args, kwargs)
    trace, values = program(session, function, args, kwargs)
    context = PassContext("autocast", "autocast", session.expand, session.tags, session.tables)
    lowered = lower_autocast().apply(trace, context)
    assert isinstance(lowered, Trace)
    stays = any(is_on(c.context) for c in lowered.calls)
    assert stays == any(part in name for part in STAYS)
    if stays:
        assert lowered.calls == trace.calls
        return
    ours, found = run(lowered, dict(values))
    assert ours == ran
    metadata = [(x.dtype, x.shape, x.stride(), x.device) for x in pytree.tree_leaves(expected)]
    assert [(x.dtype, x.shape, x.stride(), x.device) for x in pytree.tree_leaves(found)] == metadata
    assert all(p.device.type == "cuda" for c in lowered.calls for p in c.flat_outs)


def test_the_lists_are_those_of_pytorch() -> None:
    assert len(LISTED) >= 110
    kinds = {name.partition(".")[0] for name in LISTED}
    assert {"torch_fp16", "torch_fp32", "torch_need_autocast_promote", "nn_fp32"} <= kinds
