"""Private names of PyTorch that this plugin uses, the features that rest on them, their probes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_torch.extend import Feature, Table, forget_names, later, names_finder, names_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["COPIES", "NAMES", "RECORDINGS", "TABLE", "forget", "one_by_one"]

COPIES = "copies of inputs"
RECORDINGS = "recordings"

NAMES = names_in(
    {
        "torch": {"_foreach_copy_": ("copy all inputs of a graph at once", COPIES)},
        "torch.utils._python_dispatch": {
            "TorchDispatchMode": ("record operators, for tests without a device", RECORDINGS),
        },
        "torch.utils._pytree": {
            "tree_leaves": ("find the tensors of operators, for such tests", RECORDINGS),
            "tree_map_only": ("replace the tensors of operators, for such tests", RECORDINGS),
        },
    },
    called={"_foreach_copy_": "copy_all"},
)
"""The names in each module, as PyTorch 2.10 to 2.15 have them, with uses and features."""

TABLE = Table(
    "tj-cudagraph",
    f"{__name__}:TABLE",
    "tj_cudagraph",
    NAMES,
    (
        Feature(
            COPIES,
            "inputs of a graph are copied in one launch",
            "each is copied by itself",
            probe=later("tj_cudagraph.testing.probes", "copies"),
        ),
        Feature(
            RECORDINGS,
            "graphs are tested without a device",
            "there are no such tests",
            probe=later("tj_cudagraph.testing.probes", "recordings"),
        ),
    ),
)
"""The names and features of tj-cudagraph."""


def one_by_one(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each of ``sources`` to the one of ``targets`` at its place."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


_STAND_INS: dict[str, Any] = {"copy_all": one_by_one}

__getattr__ = names_finder(globals(), NAMES, _STAND_INS)


def forget() -> None:
    """Look for all names again when they are next imported."""
    forget_names(globals(), NAMES)
