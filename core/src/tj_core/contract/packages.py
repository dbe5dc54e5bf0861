"""Packages: programs in files, which run where nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.contract.fields import FUNCTION, NAME, check_fields

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PackageFormat"]


@dataclass(frozen=True, slots=True)
class PackageFormat:
    """A form of packages, by the plugin of a dialect.

    ``export(jitted, args, kwargs, dynamic)`` captures and compiles the program of ``jitted``, the
    state of a jitted callable, for these arguments, and returns a callable with a method
    ``save(path)``. ``load(path)`` returns such a callable from a file; ``accepts(path)`` tells if
    the file may be of this form. Both must do without a session, and import no compiler.
    """

    name: str
    export: Callable[..., Any]
    load: Callable[[Path], Any]
    accepts: Callable[[Path], bool]

    def __post_init__(self) -> None:
        check_fields(self, name=NAME, export=FUNCTION, load=FUNCTION, accepts=FUNCTION)
