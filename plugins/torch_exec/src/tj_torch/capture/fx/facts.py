"""Facts of attributes, Python functions and leaf modules in FX graphs.

Rule table ``fx``, open to plugins, maps ``torch.Tensor.<attribute>``, the dotted path of a function
or ``torch.nn.<Module>`` to one of the words in `Said`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Literal

from tj_core.extend import RuleTable, Symbol

from tj_torch.ops.naming.paths import function_at

if TYPE_CHECKING:
    import torch

__all__ = ["FX", "FxFacts", "Said", "rules"]

FX = "fx"
"""Name of the rule table."""

Said = Literal["constant", "operation", "pure", "refused"]
"""Words of the table.

``constant``: an attribute that guards cover. ``operation``: an attribute that is a view. ``pure``:
a function that only returns a Python value. ``refused``: reads state that no guard covers, or
changes how gradients flow; also modules that choose kernels by such state.
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
    """Facts of PyTorch and Python."""
    table: RuleTable[Said] = RuleTable(FX, rule_type=str)
    for home, said, names in _SAID:
        for name in names.split():
            table.set(f"{home}.{name}", said)
    return table


class FxFacts:
    """Look-ups in a rule table ``fx``."""

    def __init__(self, table: RuleTable[Said]) -> None:
        self._table = table
        pure = (function_at(rule.key) for rule in table if rule.value == "pure")
        self._pure = {fn for fn in pure if fn is not None}

    def attribute(self, name: str) -> Said | None:
        """Word for an attribute or method of tensors; None if the table has none."""
        rule = self._table.get(Symbol("torch", f"Tensor.{name}"))
        return None if rule is None else rule.value

    def is_pure(self, target: Any) -> bool:
        """Test for a function that only returns a Python value."""
        return isinstance(target, Hashable) and target in self._pure

    def refuses_module(self, cls: type[torch.nn.Module]) -> bool:
        """Test for modules whose behaviour is not only the calls they make on fake tensors."""
        rule = self._table.get(Symbol("torch", f"nn.{cls.__name__}"))
        return rule is not None and rule.value == "refused"
