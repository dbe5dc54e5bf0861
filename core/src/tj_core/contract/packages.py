"""Packages: programs in files, which run where nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.contract.fields import FUNCTION, NAME, OPTIONAL_FUNCTION, check_fields, of
from tj_core.errors import PluginError

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.contract.fusion import Fused, FusionRegion
    from tj_core.ir.proxy import Proxy

__all__ = ["PackageFormat", "Packaging", "TrainingNode", "TrainingParts"]


@dataclass(frozen=True, slots=True)
class PackageFormat:
    """A form of packages, by the plugin of a dialect.

    ``export(jitted, args, kwargs, dynamic, training)`` captures and compiles the program of
    ``jitted``, the state of a jitted callable, for these arguments, and returns a callable with a
    method ``save(path)``; with ``training``, the callable has gradients. ``load(path)`` returns
    such a callable from a file; ``accepts(path)`` tells if the file may be of this form. Both must
    do without a session, and import no compiler.
    """

    name: str
    export: Callable[..., Any]
    load: Callable[[Path], Any]
    accepts: Callable[[Path], bool]

    def __post_init__(self) -> None:
        check_fields(self, name=NAME, export=FUNCTION, load=FUNCTION, accepts=FUNCTION)


@dataclass(frozen=True, slots=True)
class Packaging:
    """An executor's part in packages; calls of an executor without it cannot be packaged.

    The implementations of claims are found again by their symbols, in the installed plugin of the
    same version. For an executor that fuses nothing, ``Packaging()`` is therefore enough. A claim's
    ``state`` is made anew where a package is loaded. ``options`` are options of the plugin without
    which it has no such executor; others are those of the project that loads. ``unavailable``
    returns the reason why calls of the executor would fail on the machine that loads, or None.

    ``members`` and ``restore``, both or none, are for regions. ``members(regions)`` gets pairs of a
    `FusionRegion` and its `Fused`, of one program, and returns the contents of files by name; it
    raises `PackageError` for a region that no file can hold. ``restore(regions, files)`` makes a
    `Fused` of each region from them, in the same order. It is called in another process, where no
    session runs and no compiler may be imported.
    """

    members: Callable[[Sequence[tuple[FusionRegion, Fused]]], Mapping[str, bytes]] | None = None
    restore: Callable[[Sequence[FusionRegion], Mapping[str, bytes]], Sequence[Fused]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    unavailable: Callable[[], str | None] | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            members=OPTIONAL_FUNCTION,
            restore=OPTIONAL_FUNCTION,
            options=of(Mapping),
            unavailable=OPTIONAL_FUNCTION,
        )
        if (self.members is None) != (self.restore is None):
            raise PluginError("a packaging has both members and restore, or none of them")


@dataclass(frozen=True, slots=True)
class TrainingNode:
    """A backward program, for a package: a node of the graph of gradients.

    The backward, called ``name`` among the programs of the compilation, takes those of the saved
    values at ``takes``, then ``tangents``, those of ``outputs``, which are roots. ``gradients`` has
    a pair for each gradient: its key in what the backward returns, and the name of the value that
    it is of, an input or a root of an earlier node.
    """

    name: str
    outputs: tuple[Proxy, ...]
    takes: tuple[int, ...]
    tangents: tuple[Proxy, ...]
    gradients: tuple[tuple[int | str, str], ...]


@dataclass(frozen=True, slots=True)
class TrainingParts:
    """The places of values between a forward and its backward programs, for a package.

    The forward returns ``roots``, which may get tangents, ``rest`` and ``saved``. The results of
    the user's program, ``outputs``, are among these and the inputs. ``nodes`` are the backward
    programs, each after those whose roots it takes.
    """

    outputs: tuple[Proxy | None, ...]
    roots: tuple[Proxy, ...]
    rest: tuple[Proxy, ...]
    saved: tuple[Proxy, ...]
    nodes: tuple[TrainingNode, ...]
