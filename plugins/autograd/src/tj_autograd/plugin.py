"""The plugin: gradients of traces.

Imports neither torch nor anything that does; the hooks do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from tj_core.records import Transform

TJ_PLUGIN_API = 1


@hookimpl
def tj_transforms(options: Any) -> tuple[Transform, ...]:
    from tj_autograd.transform import transforms

    return transforms()
