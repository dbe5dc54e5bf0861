"""Hooks of tj-autocast: the transform, and rule tables for policies of other plugins.

The hooks import torch when called; this module does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

if TYPE_CHECKING:
    from tj_core.extend import RuleTable, Tag, Transform

TJ_PLUGIN_API = 1


def _keeps_casts_without_gradients() -> bool:
    """Ask the probe, or where PyTorch is not imported yet, its version: 2.10 is the last one."""
    import sys

    # Listing plugins must not import PyTorch.
    if "torch" not in sys.modules:
        from tj_torch.installation import release, torch_version

        return release(torch_version()) == "2.10"
    from tj_autocast.probe import keeps_casts_without_gradients

    return keeps_casts_without_gradients()


@hookimpl
def tj_available() -> str | None:
    import importlib.util

    if not importlib.util.find_spec("torch"):
        return "torch is not installed"
    if _keeps_casts_without_gradients():
        return "this PyTorch's autocast takes casts made under no_grad where gradients are on"
    return None


@hookimpl
def tj_rule_tables() -> tuple[RuleTable[Any], ...]:
    from tj_autocast import inside, notes
    from tj_autocast.policies import policies

    return (policies(), inside.rules(), notes.rules())


@hookimpl
def tj_tags() -> tuple[Tag, ...]:
    from tj_autocast.notes import CAST_CACHE, LEAF

    return (CAST_CACHE, LEAF)


@hookimpl
def tj_transforms() -> tuple[Transform, ...]:
    from tj_autocast.transform import lower_autocast

    return (lower_autocast(),)
