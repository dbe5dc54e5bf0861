"""Exception for a call that has no definition in nvFuser."""

from __future__ import annotations

__all__ = ["Refused", "refuse"]


class Refused(Exception):
    """A call, or a form of it, that nvFuser is not given; the message is the reason."""


def refuse(condition: object, reason: str) -> None:
    """Raise `Refused` if ``condition`` is true.

    :raises Refused: with ``reason``.
    """
    if condition:
        raise Refused(reason)
