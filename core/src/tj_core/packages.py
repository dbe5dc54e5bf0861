"""The functions a user types for packages: `export` writes a program down, `load` reads one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tj_core.errors import PackageError
from tj_core.host.formats import package_formats
from tj_core.host.jitted import Jitted

if TYPE_CHECKING:
    import os

    from tj_core.contract.packages import PackageFormat

__all__ = ["export", "load"]


def export(
    fn: Any,
    inputs: Sequence[Any] = (),
    /,
    *,
    keywords: Mapping[str, Any] | None = None,
    dynamic: bool | Mapping[str, int | Sequence[int]] = False,
    training: bool = False,
    **options: Any,
) -> Any:
    """The program of ``fn(*inputs, **keywords)``, finished, as a package: call it, or ``save`` it.

    :param fn: a function, a module, or what `jit` returned.
    :param dynamic: the sizes that may differ between calls: all (True), none, or dimensions of
        arguments by name, as ``{"x": 0}``.
    :param training: with gradients, of parameters and arguments that require them.
    :param options: keywords of `jit`, as ``plugins=["torch"]``, for what is not jitted yet.
    :raises PackageError: if the program cannot be captured whole, or does what no package does.
    """
    from tj_core.api import jit  # with all that compiles, which `load` does without

    if not isinstance(inputs, tuple | list):
        raise PackageError(
            f"the arguments are a {type(inputs).__name__}, and neither a tuple nor a list",
            hint="one argument is (x,)",
        )
    state = getattr(fn, "__tj__", None)
    if not isinstance(state, Jitted) or options:
        state = jit(fn, **options).__tj__
    session: Any = state.session  # a `Session`, which has more than `Services` says
    formats = [record for _, record in session.plugins.package_formats()]
    if not formats:
        raise PackageError("no loaded plugin has a form of packages")
    return formats[0].export(state, tuple(inputs), dict(keywords or {}), dynamic, training)


def load(path: str | os.PathLike[str]) -> Any:
    """The package in the file ``path``, as a callable. Nothing is compiled.

    A package is code, which runs in this process when it is called: load none of strangers.

    :raises PackageError: if it is damaged, or made with other versions or for another machine.
    """
    file = Path(path)
    return format_of(file).load(file)


def format_of(file: Path) -> PackageFormat:
    """The form of packages that ``file`` has.

    :raises PackageError: if no plugin knows it.
    """
    known = []
    for record in package_formats():
        if record.accepts(file):
            return record
        known.append(record.name)
    raise PackageError(f"{file} is no package of a known form ({', '.join(known) or 'none'})")
