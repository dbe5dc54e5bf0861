"""What FX graphs may hold beside tensor operations: attributes, Python functions, leaf modules.

Rule table ``fx`` says so, for plugins too, of ``torch.Tensor.attribute``, of a function by its
dotted path, and of ``torch.nn.Module``: one of the words in `Said`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal

import torch
from tj_core.extend import RuleTable, Symbol

from tj_torch.ops.flags import function_at

__all__ = ["FX", "FxFacts", "Said", "rules"]

FX = "fx"
"""The table's name."""

Said = Literal["constant", "operation", "pure", "refused"]
"""An attribute that guards see is ``constant``, one that is a view an ``operation``.

A function that does nothing but return a Python value is ``pure``. What looks at things that guards
do not see, or changes how gradients flow, is ``refused``; so are modules that choose between
kernels by that.
"""

_CONSTANT = (
    "device dtype is_cpu is_cuda is_mkldnn is_mps is_nested is_quantized is_sparse is_sparse_csr"
    " is_xpu itemsize layout nbytes ndim requires_grad shape"
)
_OPERATIONS = "H T data imag mH mT real"
_REFUSED = (
    "backward data_ptr is_pinned is_set_to is_shared numpy register_hook retain_grad storage"
    " storage_offset tolist untyped_storage"
)
_PURE = (
    "abs all any bool complex dict divmod float getattr int isinstance len list max min pow range"
    " reversed round set slice sorted str sum tuple zip"
)
_PURE_OF_TORCH = (
    "Size broadcast_shapes can_cast device finfo iinfo promote_types sym_float sym_int sym_ite"
    " sym_max sym_min sym_not"
)
_MODULES = (
    "AdaptiveLogSoftmaxWithLoss MultiheadAttention SyncBatchNorm Transformer TransformerDecoder"
    " TransformerDecoderLayer TransformerEncoder TransformerEncoderLayer"
)
_SAID: tuple[tuple[str, Said, str], ...] = (
    ("torch.Tensor", "constant", _CONSTANT),
    ("torch.Tensor", "operation", _OPERATIONS),
    ("torch.Tensor", "refused", _REFUSED),
    ("builtins", "pure", _PURE),
    ("torch", "pure", _PURE_OF_TORCH),
    ("torch.nn", "refused", _MODULES),
)


def rules() -> RuleTable[Said]:
    """What is known of PyTorch and of Python."""
    table: RuleTable[Said] = RuleTable(FX, rule_type=str)
    for home, said, names in _SAID:
        for name in names.split():
            table.set(f"{home}.{name}", said)
    return table


class FxFacts:
    """What a table says."""

    def __init__(self, table: RuleTable[Said]) -> None:
        self._table = table
        pure = (function_at(rule.key) for rule in table if rule.value == "pure")
        self._pure = {fn for fn in pure if fn is not None}

    def attribute(self, name: str) -> Said | None:
        """What is known of an attribute or method of tensors."""
        rule = self._table.get(Symbol("torch", f"Tensor.{name}"))
        return None if rule is None else rule.value

    def is_pure(self, target: Any) -> bool:
        """Whether ``target`` is a function that does nothing but return a Python value."""
        return isinstance(target, Hashable) and target in self._pure

    def refuses_module(self, cls: type[torch.nn.Module]) -> bool:
        """Whether modules of ``cls`` do more than the calls that they make on fake tensors."""
        rule = self._table.get(Symbol("torch", f"nn.{cls.__name__}"))
        return rule is not None and rule.value == "refused"
