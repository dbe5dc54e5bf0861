"""The composability table: what of PyTorch and Python works under `tj.jit`, shown by programs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tj_torch.conformance.composability import modules, python
from tj_torch.conformance.composability.row import Report, Row, Status, run_row

__all__ = ["GAPS", "ROWS", "Report", "Row", "Status", "run_row"]

ROWS: Mapping[str, tuple[Row, ...]] = MappingProxyType(
    {
        title: tuple(v for v in vars(module).values() if isinstance(v, Row))
        for title, module in (("Modules", modules), ("Python", python))
    }
)
"""The rows by what they are about."""

GAPS: Mapping[str, str] = MappingProxyType(
    {
        "lazy_modules": "capture draws once more what a lazy module is initialised with",
        "structures": "Dynamo loses the entries of `vars()` of an object that the program makes",
        "numpy_inside": "NumPy calls are computed by PyTorch, whose last bit differs",
        "exceptions": "Dynamo does not guard on a key that was missing at capture",
        "replaced_methods": "methods but `forward` replaced on a module's class are not seen",
        "replaced_class_members": "members replaced on the class of a plain object are not seen",
    }
)
"""Rows that differ from eager without a word, as under torch.compile. They may only get fewer."""
