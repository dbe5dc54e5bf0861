"""Names of PyTorch that are compared as text, or looked for where a program has imported them.

Captured programs call the functions, and tj reads what those are called. A version that calls one
otherwise loses a feature, which a probe sees; nothing else fails.
"""

from __future__ import annotations

from tj_torch.torch_private import eager
from tj_torch.torch_private.lookup import Name

__all__ = [
    "EXPORTED",
    "LEVELS",
    "LEVEL_FUNCTIONS",
    "LEVEL_MODULES",
    "LOGGERS",
    "MASKS",
    "NAMES",
    "NOTES",
    "NOTE_FUNCTIONS",
    "OUTER_HOOKS",
    "SYMBOLS_OF_VALUES",
    "WHERE_IMPORTED",
]

LEVELS = "levels of torch.func"
NOTES = "notes in programs"
EXPORTED = "exported programs"
MASKS = "masks of DTensor"

LEVEL_MODULES = ("torch._C._autograd", "torch._C._functorch", "torch._functorch")
"""Modules of functions that enter or leave levels of `torch.func` and hooks of autograd."""

OUTER_HOOKS = ("torch.distributed.fsdp.", "torch.distributed._composable")
"""Packages whose hooks call ``torch._dynamo.disable`` inside, which has no mark."""

SYMBOLS_OF_VALUES = "torch.fx.experimental.symbolic_shapes"
"""The module of functions that look for symbols in a value."""

LOGGERS = ("torch._subclasses.fake_tensor", "torch._dynamo", "torch._guards")
"""The loggers of a capture; the first is that of fake tensors."""

_LEVEL = {
    "torch._C": "_set_fwd_grad_enabled _enter_dual_level _exit_dual_level",
    "torch._C._autograd": "_saved_tensors_hooks_disable _saved_tensors_hooks_enable",
    "torch._C._functorch": (
        "set_inplace_requires_grad_allowed _grad_increment_nesting _grad_decrement_nesting "
        "_jvp_increment_nesting _jvp_decrement_nesting _vmap_increment_nesting "
        "_vmap_decrement_nesting _func_increment_nesting _func_decrement_nesting"
    ),
    "torch._functorch.predispatch": (
        "lazy_load_decompositions _vmap_increment_nesting _vmap_decrement_nesting"
    ),
    "torch._functorch.vmap": (
        "lazy_load_decompositions _vmap_increment_nesting _vmap_decrement_nesting"
    ),
    "torch.autograd.forward_ad": "_maybe_load_decompositions _set_fwd_grad_enabled",
}
_NEWER = {  # from 2.12 or 2.13 on
    "torch._functorch.predispatch": (
        "_jvp_increment_nesting _jvp_decrement_nesting _enter_dual_level _exit_dual_level"
    ),
}


def _paths(functions: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for module, text in functions.items() for name in text.split())


LEVEL_FUNCTIONS = (*_paths(_LEVEL), *_paths(_NEWER))
"""Functions that `torch.func` calls to set up a level, and whose effects it reverts."""

NOTE_FUNCTIONS = (
    "torch._C._log_api_usage_once",
    "torch._assert",
    "torch._check",
    "torch.ops.profiler._record_function_enter_new.default",
    "torch.ops.profiler._record_function_exit._RecordFunction",
)
"""Functions without results that leave later calls unaffected."""

NAMES = {
    **{
        path: Name(path, "know a level of torch.func", (LEVELS,), newer=path in _paths(_NEWER))
        for path in LEVEL_FUNCTIONS
        if path not in {known.path for known in eager.NAMES.values()}  # tj calls those, too
    },
    **{path: Name(path, "know a call that changes no state", (NOTES,)) for path in NOTE_FUNCTIONS},
}
"""The names by path, as PyTorch 2.10 to 2.15 have them, with uses and features."""

WHERE_IMPORTED = {
    "GuardsFn": Name(
        "torch.export._unlift.GuardsFn", "know how a program checks its inputs", (EXPORTED,)
    ),
    "MaskBuffer": Name(
        "torch.distributed.tensor._ops._mask_buffer.MaskBuffer",
        "leave the masks that placements of DTensor keep as they are",
        (MASKS,),
    ),
    "OpSchema": Name(
        "torch.distributed.tensor._op_schema.OpSchema",
        "let DTensor find placements for calls that take symbolic numbers",
        (MASKS,),
    ),
    "composable": Name(
        OUTER_HOOKS[1], "know hooks that run around a module's program", ("sharded modules",)
    ),
    "register_hook": Name(
        "torch._higher_order_ops.register_hook",
        "know that hooks of computed tensors are captured",
        ("capture",),
        newer=True,
    ),
}
"""Names that are looked for where the program has imported their modules, which takes long."""
