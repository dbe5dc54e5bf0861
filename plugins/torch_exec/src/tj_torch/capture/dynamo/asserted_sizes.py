"""Keep sizes that depend on data where the program asserts what they are."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tj_torch.ops.sizes.corrections import replaces_data
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["keep_sizes"]


def keep_sizes(stack: ExitStack) -> None:
    """Keep symbols of data in environments that are made until ``stack`` is left."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    replace(stack, ShapeEnv, "_init", _keeping)


def _keeping(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # Expansions assert, too, after the capture.
        learn = type(self)._maybe_guard_rel
        self._maybe_guard_rel = functools.partial(_learn, learn, weakref.ref(self))

    return initialise


def _learn(learn: Callable[..., None], env: weakref.ref[Any], relation: Any) -> None:
    if not replaces_data(relation):
        learn(env(), relation)
