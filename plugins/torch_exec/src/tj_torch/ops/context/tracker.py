"""Track the dynamic context through the nodes of a captured graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tj_core.extend import CaptureError, Context

from tj_torch.ops.context.ambient import dtype_name, is_on
from tj_torch.ops.context.cast_cache import CastCache, ambient_cache
from tj_torch.torch_private.runtime import (
    attention_backends,
    enter_autocast,
    enter_inference_mode,
    exit_autocast,
    exit_inference_mode,
    sdpa_kernel,
    set_gradients,
    to_attention_backend,
)

__all__ = ["ContextTracker"]


def _ordered_backends(node: torch.fx.Node) -> bool:
    """Test for a node that also sets the order of attention backends, which no context records."""
    return any(user.target is sdpa_kernel and user.args[-1] is True for user in (node, *node.users))


_HOMES = ("torch.amp.autocast_mode", "torch.autograd.grad_mode", "torch.nn.attention")
"""Modules whose functions enter and leave contexts in graphs."""


def _argument_of_the_next(node: torch.fx.Node) -> None:
    """Do nothing: the user of the node reads its argument."""


class ContextTracker:
    """Tracker of the context through a graph's calls, from the thread's own.

    ``cache`` is autocast's cast cache at that point.
    """

    def __init__(self, ambient: Context, cache: CastCache | None = None) -> None:
        self.ambient = ambient
        self.current = ambient
        self.cache = cache or ambient_cache()
        if not self.cache.depth and is_on(ambient):
            self.cache = self.cache.entered(True)
        self._saved: dict[torch.fx.Node, tuple[Context, CastCache]] = {}
        self._handlers: dict[Any, Callable[[torch.fx.Node], None]] = {
            set_gradients: self._set_grad,
            enter_autocast: self._enter_autocast,
            exit_autocast: self._restore,
            enter_inference_mode: self._enter_inference,
            exit_inference_mode: self._restore,
            to_attention_backend: _argument_of_the_next,
            sdpa_kernel: self._set_sdpa,
        }
        self._sdpa = frozenset(b.name for b in attention_backends())

    def follows(self, node: torch.fx.Node) -> bool:
        """Test for a node whose target `handles` has a handler for.

        :raises CaptureError: for a context of PyTorch's that tj does not know.
        """
        if node.op != "call_function":
            return False
        known = node.target in self._handlers
        if not known and getattr(node.target, "__module__", None) in _HOMES:
            raise CaptureError(f"tj does not know the context {node.target}")
        return known

    def handles(self, node: torch.fx.Node) -> bool:
        """Apply ``node`` if it changes the context; False for nodes that compute."""
        handler = self._handlers[node.target] if self.follows(node) else None
        if node.target is torch.clear_autocast_cache:
            # The call itself stays in the program.
            self.cache = self.cache.cleared()
        if handler is None or _ordered_backends(node):
            return False
        handler(node)
        return True

    def _set_grad(self, node: torch.fx.Node) -> None:
        self.current = self.current.with_("grad", bool(node.args[0]))

    def _enter_autocast(self, node: torch.fx.Node) -> None:
        device, dtype, enabled, cached = node.args
        self._saved[node] = self.current, self.cache
        self.cache = self.cache.entered(cached)  # type: ignore[arg-type]
        if dtype is None:
            dtype = torch.get_autocast_dtype(str(device))
        value = dtype_name(dtype) if enabled else None  # type: ignore[arg-type]
        key = f"autocast.{device}"
        # Autocast that is off where it was off before is no change of the context.
        if value is not None or self.current.get(key) is not None:
            self.current = self.current.with_(key, value)

    def _enter_inference(self, node: torch.fx.Node) -> None:
        self._saved[node] = self.current, self.cache
        mode = bool(node.args[0]) if node.args else True
        # Also where it was off: Dynamo turns inference mode off while it compiles the parts of a
        # program with graph breaks, so the ambient context does not tell.
        self.current = self.current.with_("inference", mode)
        self.current = self.current.with_("grad", not mode)  # inference_mode(False) enables grad

    def _set_sdpa(self, node: torch.fx.Node) -> None:
        """Set the attention backends; the process's own are not recorded as context."""
        backends: Any = node.args[0]
        names = tuple(sorted(str(backend.args[0]) for backend in backends))
        rest = Context(tuple(i for i in self.current.items if i[0] != "sdpa"))
        self.current = rest if frozenset(names) == self._sdpa else rest.with_("sdpa", names)

    def _restore(self, node: torch.fx.Node) -> None:
        entered = node.args[0]
        assert isinstance(entered, torch.fx.Node)
        self.current, cache = self._saved.pop(entered)
        self.cache = cache.left(self.cache)
