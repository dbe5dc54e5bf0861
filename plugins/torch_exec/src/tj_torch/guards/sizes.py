"""Guards on symbolic sizes, as text; Dynamo checks them with all others."""

from __future__ import annotations

from typing import Any

__all__ = ["size_texts"]


def size_texts(graph: Any) -> list[str]:
    """Conditions on symbolic sizes among the guards of Dynamo's output ``graph``."""
    found = (g.code_list or () for g in graph.guards if g.create_fn_name() == "SHAPE_ENV")
    return [str(code) for codes in found for code in codes]
