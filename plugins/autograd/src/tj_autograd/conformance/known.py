"""Where gradients differ from eager's, entry by entry of PyTorch's databases, and why.

Compared with in both directions, as `tj_torch.conformance.known`, of which it holds what happens in
the forward.
"""

from __future__ import annotations

from tj_torch.conformance import known as forward
from tj_torch.conformance.result import Kind

__all__ = ["MODULES", "OPERATIONS"]

_BREAKS = tuple(k for k in forward.OPERATIONS if k.kind is Kind.BREAK and not k.cases)

OPERATIONS = (*_BREAKS,)
"""op_db; cases are ``"first float32"``, ``"second float32"``, ``"gradcheck float64"``."""

MODULES = forward.MODULES
"""module_db in training."""
