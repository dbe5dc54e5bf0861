"""Sessions in which layers run in int8, and all is verified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj


@pytest.fixture
def rounding() -> Callable[..., Any]:
    """``tj.jit`` with options of tj-onednn; by default, all layers run in int8."""

    def jit(f: Any, *before: str, dynamic: bool | None = False, **options: Any) -> Any:
        overrides = {"check": 2, "strict": True, "onednn": options or {"int8": ["*"]}}
        plugins = ("onednn", *before, "autocast", "autograd", "torch")
        return tj.jit(f, session=tj.Session(plugins, overrides=overrides), dynamic=dynamic)

    return jit
