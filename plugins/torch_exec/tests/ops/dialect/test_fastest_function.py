"""Python functions for operators: the same operator is dispatched, with the same result."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import Any

import pytest
import torch
from tj_conformance.sampling import FULL
from tj_core.ir.proxy import Device, DType, NumberProxy, SubclassInfo, SymDim, TensorProxy
from tj_core.ir.symbol import Constant, Symbol
from tj_core.ir.trace import BoundSymbol
from tj_torch.ops.dialect.fastest_function import entry
from tj_torch.ops.values.convert import tensor_proxy, to_core, to_core_tree
from tj_torch.runtime.checks import assert_number
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_structure

F32, I64 = DType("float32", 32, "float"), DType("int64", 64, "int")


def tensor(name: str, *shape: int, dtype: DType = F32) -> TensorProxy:
    return TensorProxy(name, shape=shape, dtype=dtype, device=Device("cpu"))


X, COUNT = tensor("x", 2, 3), tensor("n", dtype=I64)
DTYPE, CPU = Constant("f", torch.float32), Constant("d", torch.device("cpu"))


def call(name: str, *args: object, **kwargs: object) -> BoundSymbol:
    return BoundSymbol(Symbol("aten", name), args, tuple(kwargs.items()))


@pytest.mark.parametrize(
    ("made", "function"),
    [
        (call("sum.dim_IntList", X, [0], True), torch.sum),
        (call("sum.dim_IntList", X, [], True), torch.sum),
        (call("view.default", X, [SymDim("n"), 3]), torch.Tensor.view),
        (call("mul.Tensor", X, 2), torch.mul),
        (call("mul.Tensor", X, NumberProxy("k", kind="float")), torch.mul),
        (call("mul.Tensor", X, COUNT), torch.mul),
        (call("mul.Tensor", 2, X), torch.mul),
        (call("mul.Scalar", X, 2), None),  # torch.mul reaches mul.Tensor
        (call("add_.Tensor", X, X, alpha=2), torch.Tensor.add_),
        (call("sum.dim_IntList", X, None), torch.sum),
        (call("max.dim", X, 0), torch.max),
        (call("gelu.default", X, approximate="tanh"), torch._C._nn.gelu),
        (call("cat.default", [X, X], 1), torch.cat),
        (call("index.Tensor", X, [None, COUNT]), None),  # that is no function in Python
        (call("matmul.default", X, X), None),  # it is made of others
        (call("full.default", [2], 1.0), None),  # the default device would have a say
        (call("zeros.default", [2], dtype=DTYPE, device=CPU, pin_memory=False), torch.zeros),
        (call("zeros.default", [2], dtype=DTYPE, device=CPU), None),  # torch.zeros adds pin_memory
        (call("_assert_scalar.default", NumberProxy("b", kind="bool"), "text"), assert_number),
        (call("no_such.default", X), None),
        (call("tanh_backward.default", X, X), None),
    ],
    ids=lambda x: str(x.symbol) if isinstance(x, BoundSymbol) else "",
)
def test_functions_that_reach_an_operator(made: BoundSymbol, function: object) -> None:
    assert entry(made) == function == entry(made)


def test_a_subclass_gets_the_operator_itself() -> None:
    wrapped = dataclasses.replace(X, subclass=SubclassInfo("some.Wrapper", (("inner", X),)))
    assert entry(call("mul.Tensor", wrapped, 2)) is None
    assert entry(call("mul.Tensor", X, 2)) is torch.mul


class _First(TorchDispatchMode):
    """Mode that keeps the first operator dispatched."""

    found: tuple[object, object, object] | None = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.found is None:
            self.found = func, args, kwargs or {}
        return func(*args, **(kwargs or {}))


class _ByEntry(TorchDispatchMode):
    """Mode that runs each operator by its entry, which must dispatch it with the same arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.ran = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = entry(_bound(func, args, kwargs)) if func.namespace == "aten" else None
        if found is None:
            return func(*args, **kwargs)
        self.ran += 1
        with _First() as first:
            result = found(*args, **kwargs)
        assert first.found is not None, func
        assert first.found[0] is func, (func, first.found)
        for got, given in zip(first.found[1:], (args, kwargs), strict=True):
            assert tree_structure(got) == tree_structure(given), func
            for x, y in zip(tree_leaves(got), tree_leaves(given), strict=True):
                assert x is y or (type(x) is type(y) and x == y), func
        return result


def _bound(func: torch._ops.OpOverload, args: Any, kwargs: Any) -> BoundSymbol:
    names = (f"t{i}" for i in itertools.count())

    def leaf(x: object) -> object:
        return tensor_proxy(next(names), x) if isinstance(x, torch.Tensor) else to_core(x)

    name = func._schema.name.removeprefix("aten::")
    given, named = to_core_tree((args, kwargs), leaf)
    return call(f"{name}.{func._overloadname}", *given, **named)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_op_db_dispatches_is_reached_by_its_entries() -> None:
    ran = 0
    for op in op_db[:: 1 if FULL else 40]:
        if torch.float32 not in op.dtypes or "jiterator" in op.name:  # those are for CUDA only
            continue
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), 3):
            with _ByEntry() as mode, contextlib.suppress(RuntimeError):  # what eager refuses too
                op(sample.input, *sample.args, **sample.kwargs)
            ran += mode.ran
    assert ran > (200 if FULL else 25)
