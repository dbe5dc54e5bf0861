"""Corrections of Dynamo, and what becomes of programs without one.

One is lost where a name is missing, or where its probe finds that a patch has no effect.
Then functions of the user's that need it run as they are, with one warning; one that every program
needs is essential, and all programs run in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import CaptureError

from tj_torch.torch_private.lookup import MissingNameError
from tj_torch.torch_private.tables import Feature, Probe

__all__ = ["Correction", "Needs", "apply_features", "missing"]

_MISSING = (MissingNameError, ImportError, AttributeError, KeyError)
"""Errors of a patch that does not find what it replaces."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The functions that need a feature, told by an instruction in them.

    An instruction counts by its ``operations``, or by a name in ``names`` that it loads or stores.
    """

    operations: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    of_pytorch: bool = False
    """Count functions in PyTorch's own files, too."""

    def asks(self, instruction: Any) -> bool:
        """Tell whether ``instruction``, of Dynamo's or `dis`, needs the feature."""
        name = instruction.argval
        return instruction.opname in self.operations or (
            isinstance(name, str) and name in self.names
        )


Apply = Callable[[ExitStack, Any], None]


@dataclass(frozen=True, slots=True)
class Correction(Feature):
    """One thing that a capture is right in, and that private names of PyTorch are needed for.

    ``apply`` makes it so until a stack is left. ``needs`` tells the functions that are not captured
    without it: None for an essential one, and the empty one for a correction without which results
    are right, if rounded or timed otherwise.
    """

    apply: Apply = lambda stack, noticed: None
    needs: Needs | None = None

    @classmethod
    def of(
        cls, name: str, does: str, apply: Apply, needs: Needs | None, probe: Probe | None = None
    ) -> Correction:
        """A correction, which ``needs`` says the importance of."""
        if needs is None:
            without = "all programs run in eager"
        elif needs == Needs():
            without = "results may be rounded otherwise than in eager"
        else:
            without = "functions that need it run in eager"
        return cls(name, does, without, needs is None, probe, apply, needs)


def apply_features(
    features: Iterable[Correction], stack: ExitStack, noticed: Any, found: Mapping[str, str]
) -> list[tuple[Correction, str]]:
    """Apply features until ``stack`` is left; return those that are lost, with reasons.

    :param noticed: what features fill while programs are captured.
    :param found: reasons of features that probes have found to be lost, by name.
    :raises CaptureError: if an essential one is lost.
    """
    features, reasons = tuple(features), dict(found)
    # Hardly ever is one lost that no probe has found: then all are undone, and applied without it.
    while (new := _applied(features, stack, noticed, reasons)) is not None:
        reasons |= new
    lost = [(f, reasons[f.name]) for f in features if f.name in reasons]
    for feature, reason in lost:
        if feature.essential:
            raise CaptureError(
                f"tj does not know PyTorch {torch.__version__}: {feature.name}: {reason}"
            )
    return lost


def missing(features: Iterable[Correction], noticed: Any) -> dict[str, str]:
    """The reasons of features that do not find what they replace, by name."""
    found: dict[str, str] = {}
    for feature in features:
        with ExitStack() as stack:
            found |= _applied((feature,), stack, noticed, {}) or {}
    return found


def _applied(
    features: Iterable[Correction], stack: ExitStack, noticed: Any, lost: Collection[str]
) -> dict[str, str] | None:
    """Apply ``features`` but the ``lost`` ones until ``stack`` is left, or none of them.

    Returns the reason of one that cannot be applied, by its name; None if all can be.
    """
    with ExitStack() as own:
        for feature in features:
            if feature.name in lost:
                continue
            try:
                feature.apply(own, noticed)
            except _MISSING as error:
                return {feature.name: _reason(error)}
        stack.push(own.pop_all())
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, MissingNameError):
        return f"no {error.path}"
    return f"{type(error).__name__}: {error}"
