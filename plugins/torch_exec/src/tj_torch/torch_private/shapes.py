"""Names of PyTorch for symbolic sizes and fake tensors, found when they are first imported."""

from __future__ import annotations

from tj_torch.torch_private import lookup
from tj_torch.torch_private.eager import RUNS
from tj_torch.torch_private.lookup import Name, finder, names_in

__all__ = ["MESHES", "NAMES", "forget"]

MESHES = "device meshes"

_NEWER = {
    "FakeScriptObject": Name(
        "torch._library.fake_class_registry.FakeScriptObject",
        "know a device mesh",
        (MESHES,),
        newer=True,
    ),
    "get_opaque_obj_info": Name(
        "torch._library.opaque_object.get_opaque_obj_info",
        "know what makes two device meshes equal",
        (MESHES,),
        newer=True,
    ),
}
"""Names that PyTorch has from 2.11 on."""

NAMES = _NEWER | names_in(
    {
        "torch._dynamo.source": {"ConstantSource": ("say where a symbol of a size comes from",)},
        "torch._dispatch.python": {
            "enable_python_dispatcher": ("run PyTorch's decompositions in Python", RUNS),
        },
        "torch._prims_common": {
            "suggest_memory_format": ("know the memory format of kernels", RUNS),
        },
        "torch._subclasses.fake_tensor": {
            "DataDependentOutputException": ("know that a value depends on data", RUNS),
            "DynamicOutputShapeException": ("know that a shape depends on data", RUNS),
            "FakeTensor": ("have tensors without data", RUNS),
            "FakeTensorMode": ("run operations without data", "capture", "strides of kernels"),
            "UnsupportedFakeTensorException": ("know what fake tensors do not support", RUNS),
            "UnsupportedOperatorException": ("know operators without a fake kernel", RUNS),
        },
        "torch.fx.experimental.symbolic_shapes": {
            "GuardOnDataDependentSymNode": ("know that a value depends on data", RUNS),
            "ShapeEnv._constrain_range_for_size": ("bound a size that depends on data", RUNS),
            "guard_size_oblivious": ("know what holds for sizes that depend on data", RUNS),
            "statically_known_true": ("know what holds for all sizes", RUNS),
        },
        "torch.utils._sympy": {"functions": ("read the functions in expressions of sizes",)},
        "torch.utils._sympy.functions": {
            "BitwiseFn_bitwise_and": ("know that the bits of a size are an integer",),
            "BitwiseFn_bitwise_or": ("know the same of the bits of one of two",),
            "BitwiseFn_bitwise_xor": ("know the same of bits that differ",),
        },
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


def forget() -> None:
    """Look for all names again when they are next imported."""
    lookup.forget(globals(), NAMES)
