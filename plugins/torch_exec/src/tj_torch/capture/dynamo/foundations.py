"""Features that rest on names of PyTorch outside of Dynamo: modes, threads, operators, memory.

Without an essential one nothing is captured, and jitted programs are the user's own: what decides
on a call, such as the modes that are on, cannot be known.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo import foundation_probes as probes
from tj_torch.torch_private import eager, shapes, texts
from tj_torch.torch_private.features import Correction, Needs
from tj_torch.torch_private.lookup import MissingNameError, Name

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tj_torch.torch_private.tables import Probe

__all__ = ["FOUNDATIONS", "NAMES", "essential_missing", "forget"]

NAMES: dict[str, Name] = {**eager.NAMES, **shapes.NAMES, **texts.NAMES}
"""The names that these features, and the feature ``capture``, need."""


@functools.cache
def _missing(feature: str) -> MissingNameError | None:
    """The error for the first name that ``feature`` lacks."""
    for name in NAMES.values():
        if feature in name.features and not name.newer:
            try:
                name.find()
            except MissingNameError as error:
                return error
    return None


def _feature(
    name: str,
    does: str,
    probe: Probe | None = None,
    needs: Needs | None = None,
    without: str = "functions that need it run in eager",
) -> Correction:
    """A feature without a correction: it is there if its names are."""

    def apply(stack: ExitStack, noticed: Any) -> None:
        if error := _missing(name):
            raise error.with_traceback(None)

    essential = needs is None
    without = "all programs run in eager" if essential else without
    return Correction(name, does, without, essential, probe, apply, needs)


_BY_USE = Needs()
"""Of a feature that is found missing where it is used, after a capture."""

_IN_EAGER = "programs that need it run in eager"
_UNEXPANDED = "it is run as it is"

FOUNDATIONS: tuple[Correction, ...] = (
    _feature(
        eager.MODES,
        "modes, torch.func and forward-mode AD see the operations of the program",
        probes.modes,
    ),
    _feature(
        eager.THREADS, "modes and levels are after a capture as they were before", probes.threads
    ),
    _feature(eager.OPERATORS, "what operators read and write is known", probes.operators),
    _feature(eager.RUNS, "calls are run without data, as functions of values", probes.runs),
    _feature(eager.FORMS, "lazy and sparse tensors are told from plain ones", probes.forms),
    _feature(eager.VIEWS, "writes are seen through all views", probes.views),
    _feature(eager.GRADIENTS, "a backward runs as autograd's own does", probes.gradients),
    _feature(eager.FLAGS, "programs are guarded on flags that choose kernels", probes.flags),
    _feature(
        eager.DEVICES,
        "programs are captured where a default device is set",
        probes.devices,
        _BY_USE,
        "such programs run in eager",
    ),
    _feature(
        eager.EARLY,
        "a checkpoint stops its recomputation early",
        None,
        _BY_USE,
        "it recomputes all, in more time",
    ),
    _feature(
        eager.GRAPHS,
        "FX graphs are imported with the tensors and the modules that they make",
        None,
        _BY_USE,
        _IN_EAGER,
    ),
    _feature(
        eager.AUTOCAST,
        "autocast in a program is part of its trace",
        probes.autocast,
        Needs(names=frozenset({"autocast", "custom_fwd", "custom_bwd"})),
    ),
    _feature(
        eager.INFERENCE,
        "inference mode in a program is part of its trace",
        probes.inference,
        Needs(names=frozenset({"inference_mode"})),
    ),
    _feature(
        eager.ATTENTION,
        "kernels of attention that a program chooses are part of its trace",
        probes.attention,
        Needs(names=frozenset({"sdpa_kernel"})),
    ),
    _feature(
        eager.CONVOLUTIONS,
        "gradients of convolutions have the strides of eager",
        probes.convolutions,
        _BY_USE,
        _IN_EAGER,
    ),
    _feature(
        texts.LEVELS,
        "what follows a transform of torch.func in a program is expanded",
        probes.levels,
        _BY_USE,
        _UNEXPANDED,
    ),
    _feature(
        texts.NOTES,
        "what follows an assertion, or a note for a profiler, is expanded",
        probes.notes,
        _BY_USE,
        _UNEXPANDED,
    ),
    _feature(
        shapes.MESHES,
        "programs are guarded on device meshes",
        None,
        _BY_USE,
        "each mesh is a program's own",
    ),
    _feature(
        texts.MASKS, "masks that DTensor keeps are left as they are", None, _BY_USE, _IN_EAGER
    ),
    _feature(texts.EXPORTED, "exported programs check their inputs once", None, _BY_USE, _IN_EAGER),
)
"""The features."""


@functools.cache
def essential_missing() -> MissingNameError | None:
    """The error for the first name that any program needs and this PyTorch lacks."""
    for feature in FOUNDATIONS:
        if feature.essential and (error := _missing(feature.name)):
            return error.with_traceback(None)
    return None


def forget() -> None:
    """Look for all names again; for tests."""
    eager.forget()
    shapes.forget()
    _missing.cache_clear()
    essential_missing.cache_clear()
