"""Names of PyTorch for symbolic sizes and fake tensors, found when they are first imported."""

from __future__ import annotations

from tj_torch.torch_private.lookup import finder, names_in

__all__ = ["NAMES"]

NAMES = names_in(
    {
        "torch._C": {"DispatchKey": ("name the keys by which fake tensors choose kernels",)},
        "torch._dynamo.source": {"ConstantSource": ("say where a symbol of a size comes from",)},
        "torch._subclasses.fake_tensor": {"FakeTensorMode": ("run operations without data",)},
        "torch.utils._sympy": {"functions": ("read the functions in expressions of sizes",)},
        "torch.utils._sympy.numbers": {"int_oo": ("have no upper end for a size",)},
        "torch.utils._sympy.symbol": {
            "SymT": ("have the kinds of symbols",),
            "make_symbol": ("make a symbol for a size",),
        },
        "torch.utils._sympy.value_ranges": {"ValueRanges": ("say between which ends a size is",)},
    },
    feature="capture",
)
"""The names, with the paths at which PyTorch 2.10 to 2.15 have them."""

__getattr__ = finder(globals(), NAMES)
