"""The global names of an expression."""

from __future__ import annotations

import ast
import builtins
from functools import lru_cache

__all__ = ["roots"]


@lru_cache(maxsize=1024)
def roots(text: str) -> tuple[str, ...]:
    """The global names in an expression, without builtins: ``torch`` of ``torch.float32``."""
    names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    return tuple(sorted(n for n in names if not hasattr(builtins, n)))
