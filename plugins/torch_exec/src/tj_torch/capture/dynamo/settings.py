"""Settings of Dynamo for a capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["guarding", "settings", "with_settings"]


@contextmanager
def with_settings(values: Mapping[str, Any]) -> Iterator[None]:
    """Give settings of Dynamo ``values`` inside of the block.

    Only those that have others are set: each time, Dynamo computes the hash of all of them again.
    """
    from tj_torch.torch_private.dynamo import dynamo

    config = dynamo.config
    before = {name: getattr(config, name) for name in values}
    changed = [name for name, value in values.items() if before[name] != value]
    try:
        for name in changed:
            setattr(config, name, values[name])
        yield
    finally:
        for name in changed:
            setattr(config, name, before[name])


_UNGUARDED = (
    "skip_guards_on_constant_func_defaults",
    "skip_nnmodule_hook_guards",
    "skip_tensor_guards_with_matching_dict_tags",
)
"""Settings of some versions that leave out guards on facts that may change.

Default values of arguments, hooks of modules, and ``requires_grad`` of tensors in an unchanged
dict.
"""


def settings(dynamic: bool | None) -> dict[str, Any]:
    """Dynamo's config for a capture; ``dynamic`` is as in torch.compile.

    Unlike Dynamo's default, recurrent networks are captured, and a whole number of a module that
    differs between calls, such as a position in a cache, becomes a symbol as one of any object.
    """
    found = {
        "record_runtime_overhead": False,
        "allow_rnn": True,
        "allow_unspec_int_on_nn_module": True,
    }
    if dynamic is not None:
        found |= {"automatic_dynamic_shapes": dynamic, "assume_static_by_default": not dynamic}
    return found


def guarding() -> dict[str, Any]:
    """Dynamo's settings with which no guards are left out, of those in this version."""
    from tj_torch.torch_private.dynamo import dynamo

    return {name: False for name in _UNGUARDED if hasattr(dynamo.config, name)}
