"""Operators of executors' own, which executors that fuse see as one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["opaque_operator"]


def opaque_operator(
    library: torch.library.Library,
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    *tags: torch.Tag,
) -> Any:
    """Define the operator ``schema`` in ``library``, and return it.

    ``function`` runs it on all devices. ``fake`` returns results with the metadata of those of
    ``function``, without values. The caller keeps ``library``: PyTorch removes its operators when
    it is freed.
    """
    name = schema.partition("(")[0]
    library.define(schema, tags=tags)
    # One kernel for all devices. Executors call it below autograd, which has none.
    library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{library.ns}::{name}", fake, lib=library)
    return getattr(getattr(torch.ops, library.ns), name).default
