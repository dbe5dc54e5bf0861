"""Names of PyTorch for symbolic sizes and fake tensors, found when they are first imported."""

from __future__ import annotations

from tj_torch.torch_private.lookup import finder, paths_of

__all__ = ["PATHS"]

_NAMES = {
    "torch._C": "DispatchKey",
    "torch._dynamo.source": "ConstantSource",
    "torch._subclasses.fake_tensor": "FakeTensorMode",
    "torch.utils._sympy": "functions",
    "torch.utils._sympy.numbers": "int_oo",
    "torch.utils._sympy.symbol": "SymT make_symbol",
    "torch.utils._sympy.value_ranges": "ValueRanges",
}

PATHS = paths_of(_NAMES)
"""The names, with the paths at which PyTorch 2.10 to 2.14 have them."""

__getattr__ = finder(globals(), PATHS)
