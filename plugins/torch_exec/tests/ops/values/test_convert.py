"""Conversion of values between PyTorch and the core is exact, and constants print as Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tj_core.ir.proxy import Device, DType, SymDim
from tj_core.ir.symbol import Constant
from tj_torch.ops.sizes.program import Sizes
from tj_torch.ops.values import convert
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_returns(dtype: torch.dtype) -> None:
    core = convert.dtype_to_core(dtype)
    assert convert.dtype_to_torch(core) is dtype
    assert DType.parse(str(core)) == core
    assert core.bits == dtype.itemsize * 8


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (torch.bfloat16, "float"),
        (torch.complex64, "complex"),
        (torch.int64, "int"),
        (torch.uint8, "uint"),
        (torch.bool, "bool"),
        (torch.quint8, "opaque"),
    ],
    ids=str,
)
def test_dtype_kind(dtype: torch.dtype, kind: str) -> None:
    assert convert.dtype_to_core(dtype).kind == kind


def test_unknown_dtype() -> None:
    with pytest.raises(LookupError, match="no data type 'float3'"):
        convert.dtype_to_torch(DType("float3", 8, "float"))


@pytest.mark.parametrize("text", ["cpu", "cuda:1", "meta"])
def test_device_returns(text: str) -> None:
    assert convert.device_to_torch(convert.device_to_core(torch.device(text))) == torch.device(text)
    assert convert.device_to_core(torch.device(text)) == Device.parse(text)


def test_tensor_metadata() -> None:
    tensor = torch.empty(2, 3, dtype=torch.complex64, requires_grad=True).t().conj()
    proxy = convert.tensor_proxy("x", tensor)
    assert (proxy.shape, proxy.strides) == ((3, 2), (1, 3))
    assert proxy.requires_grad
    assert proxy.flags == ("conj",)
    assert convert.tensor_proxy("x", torch._neg_view(torch.ones(2))).flags == ("neg",)
    assert convert.tensor_proxy("x", torch.ones(2).to_sparse()).layout == "sparse_coo"


def test_subclass_metadata() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    proxy = convert.tensor_proxy("x", TwoTensor(torch.ones(2), torch.zeros(2)))
    assert proxy.subclass is not None
    assert proxy.subclass.type.endswith("TwoTensor")
    assert [name for name, _ in proxy.subclass.inner] == ["a", "b"]
    assert convert.tensor_proxy("p", torch.nn.Parameter(torch.ones(2))).subclass is None


def test_symbolic_sizes() -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = mode.from_tensor(torch.ones(5, 3), symbolic_context=context)
    sizes = Sizes(env)
    dim = convert.tensor_proxy("x", fake, sizes.dim).shape[0]
    assert isinstance(dim, SymDim)
    assert dim.hint == 5
    assert convert.tensor_proxy("x", fake).shape == (dim, 3)
    with pytest.raises(TypeError, match="only at run time"):
        convert.to_core(fake.shape[0])
    number = sizes.number(convert.number_proxy("n", fake.shape[0] * 2))
    assert (number.kind, number.expr, number.hint) == ("int", f"2*{dim.name}", 10)
    assert dim.guard is not None
    with pytest.raises(ValueError, match="is not 6"):
        dim.guard(6)
    dim.guard(5)
    assert fake.shape[0].node.maybe_as_int() == 5
    assert convert.dim_to_core(fake.shape[0]) == convert.to_core(fake.shape[0]) == 5


CONSTANTS = [
    torch.float32,
    torch.device("cuda:1"),
    torch.strided,
    torch.channels_last,
    torch.per_tensor_affine,
    math.inf,
    -math.inf,
    complex(1, math.inf),
    range(1, 7, 2),
    int,
    torch.sin,
    torch.Tensor,
    torch.Tensor.add,
    torch.nn.functional.relu,
    torch.nn.Linear,
    torch.ops.aten.add.Tensor,
    torch.nn.attention.SDPBackend.MATH,
]


@pytest.mark.parametrize("value", CONSTANTS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_constant_evaluates(value: object) -> None:
    constant = convert.to_core(value)
    assert isinstance(constant, Constant)
    assert constant.named
    assert eval(constant.text, {"torch": torch}) == value
    assert convert.to_torch((constant,)) == (value,)


def test_nan_is_a_constant() -> None:
    constant = convert.to_core(math.nan)
    assert constant.text == 'float("nan")'
    assert constant == convert.to_core(math.nan)


@pytest.mark.parametrize("value", [lambda x: x, object(), torch.Generator()])
def test_anything_else_travels_beside(value: object) -> None:
    constant = convert.to_core(value)
    assert not constant.named
    assert constant.text.isidentifier()
    assert convert.to_torch(constant) is value


LITERALS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.binary(),
    st.just(...),
    st.floats(allow_nan=False, allow_infinity=False),
)


TREES = st.recursive(
    LITERALS, lambda x: st.lists(x) | st.tuples(x, x) | st.dictionaries(st.text(), x)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TREES)
def test_trees_of_literals_stay(tree: object) -> None:
    assert convert.to_core(tree) == tree
    assert eval(repr(convert.to_core(tree)), {"Ellipsis": ...}) == tree


def test_containers_become_plain() -> None:
    assert type(convert.to_core(torch.Size([1, 2]))) is tuple
    assert convert.to_core(slice(1, None, 2)) == slice(1, None, 2)
    maximum = torch.ones(2).max(0)
    assert type(convert.to_core_tree(maximum, lambda x: 0)) is tuple
