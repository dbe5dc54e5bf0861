"""Why a call has no definition in nvFuser."""

from __future__ import annotations

__all__ = ["Refused", "refuse"]


class Refused(Exception):
    """A call, or a way to call it, that nvFuser is not given; its text says why."""


def refuse(condition: object, reason: str) -> None:
    """Refuse the call if ``condition`` is true.

    :raises Refused: then.
    """
    if condition:
        raise Refused(reason)
