"""PyTorch's record of the modules that ``fully_shard`` and ``replicate`` manage."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tj_torch.torch_private.lookup import MissingNameError, names_in

if TYPE_CHECKING:
    import torch

__all__ = ["NAMES", "share_state"]

_MODULE = "torch.distributed._composable_state"

NAMES = names_in(
    {
        _MODULE: {
            "_get_module_state": ("see that a module is sharded",),
            "_insert_module_state": ("have a jitted module known as the sharded one",),
        }
    },
    feature="sharded modules",
)


def share_state(module: torch.nn.Module, wrapper: torch.nn.Module) -> None:
    """Let PyTorch find the state that manages ``module`` by ``wrapper``, too.

    FSDP2's root looks for the states of its ``modules()``: a jitted block that it did not find
    would be a root of its own, whose parameters are not freed after the forward.
    """
    if _MODULE not in sys.modules:  # nothing is managed before it is imported
        return
    try:
        get, insert = (NAMES[name].find() for name in ("_get_module_state", "_insert_module_state"))
    except MissingNameError:
        return
    state = get(module)
    if state is not None:
        insert(wrapper, state)
