"""Find the cause of a failed pass: an earlier transform may have made an ill-formed trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tj_core.errors import PassError, PluginError, VerificationError
from tj_core.verify.verifier import verify

if TYPE_CHECKING:
    from tj_core.compile.transforms import Ranked
    from tj_core.ir.tags import TagRegistry
    from tj_core.ir.trace import Trace

__all__ = ["blaming"]


@contextlib.contextmanager
def blaming(
    traces: Sequence[Trace], makers: Mapping[int, Ranked], tags: TagRegistry, strict: bool
) -> Iterator[None]:
    """Attribute a failure inside the block to the transform behind the first ill-formed trace.

    ``makers`` are the transforms that made ``traces``, by index.

    :raises PassError: if the transform has ``falls_back``, and the mode is not ``strict``.
    :raises PluginError: for other transforms.
    """
    try:
        yield
    # They say themselves whose fault it is.
    except (PluginError, VerificationError):
        raise
    except Exception as error:
        found = _wrong_trace(traces, makers, tags)
        if found is None:
            raise
        maker, wrong = found
        if maker.transform.falls_back and not strict:
            raise PassError(maker.transform.name, wrong) from error
        raise PluginError(
            f"{maker} made a wrong trace: {wrong.message}",
            source=wrong.source,
            hint=f"{maker.remedy}; check = 1 says what it does wrong",
        ) from error


def _wrong_trace(
    traces: Sequence[Trace], makers: Mapping[int, Ranked], tags: TagRegistry
) -> tuple[Ranked, VerificationError] | None:
    """The transform behind the first ill-formed trace, with the verifier's error; or None."""
    for place, trace in enumerate(traces):
        try:
            verify(trace, tags=tags)
        except VerificationError as error:
            maker = makers.get(place)
            return None if maker is None else (maker, error)
    return None
