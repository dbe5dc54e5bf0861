"""Records of plugins by the names that users give, with a suggestion for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tj_core.contract.executors import Executor
from tj_core.errors import ConfigError, did_you_mean
from tj_core.host.frontends import Frontend

__all__ = ["INSTALL_HINT", "named"]

INSTALL_HINT = "pip install tj-torch adds PyTorch's; `tj plugins --all` shows what is installed"

R = TypeVar("R", Executor, Frontend)


def named(name: str, records: Iterable[R], what: str) -> R:
    """Record called ``name``.

    :raises ConfigError: if there is none.
    """
    known = {record.name: record for record in records}
    if name not in known:
        raise ConfigError(
            f"unknown {what} {name!r}." + did_you_mean(name, known),
            hint=f"known: {', '.join(known) or 'none'}. {INSTALL_HINT}",
        )
    return known[name]
