"""Tables of programs that write and alias, each with the rows of the taxonomy it stands for."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tj_core as tj

from tj_conformance.oracle.versions import left_to_this_version
from tj_conformance.programs.aliasing import Jit, Program, Report, check, stateless
from tj_conformance.programs.scenes import KINDS, Layout, pair, placed
from tj_conformance.sampling import FULL

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

__all__ = [
    "Board",
    "Case",
    "Table",
    "as_written",
    "cases_in",
    "in_functional_form",
    "modules_in",
    "run_case",
    "with_gradients",
]

# Numbers of modules that are made: `sys.modules` and `linecache` are the process's.
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Case:
    """One program, with its known behaviour.

    ``layouts`` run in order through one jitted callable, for each of ``kinds``. ``raises`` are the
    kinds for which eager raises; ``breaks`` those for which Dynamo breaks the graph or tj refuses
    its capture, so that a part of the program runs in eager.
    """

    name: str
    rows: tuple[str, ...]
    make: Callable[[], Program]
    layouts: tuple[Layout, ...]
    kinds: tuple[str, ...]
    raises: frozenset[str]
    breaks: frozenset[str]
    create_graph: bool


class Table:
    """Decorators that collect programs: ``@table("I1", layouts=(pair,))``."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def __call__(self, *rows: str, **facts: Any) -> Callable[[Any], Any]:
        """Add a function that keeps nothing between calls."""

        def add(fn: Callable[..., Any]) -> Callable[..., Any]:
            self._add(fn.__name__, rows, stateless(fn), **facts)
            return fn

        return add

    def stateful(self, *rows: str, **facts: Any) -> Callable[[Any], Any]:
        """Add a factory of `Program`."""

        def add(make: Callable[[], Program]) -> Callable[[], Program]:
            self._add(make.__name__, rows, make, **facts)
            return make

        return add

    def _add(
        self,
        name: str,
        rows: tuple[str, ...],
        make: Callable[[], Program],
        *,
        layouts: Sequence[Layout] = (pair,),
        kinds: Sequence[str] = KINDS,
        raises: Collection[str] = (),
        breaks: bool | Collection[str] = False,
        create_graph: bool = False,
    ) -> None:
        broken = frozenset(kinds if breaks is True else breaks or ())
        refused = frozenset(raises)
        if not {*refused, *broken} <= {*kinds} <= {*KINDS}:
            raise ValueError(f"{name}: unknown kinds")
        case = Case(name, rows, make, tuple(layouts), tuple(kinds), refused, broken, create_graph)
        self.cases.append(case)

    def each(self) -> Iterator[tuple[Case, str]]:
        """Every case with every kind."""
        return ((case, kind) for case in self.cases for kind in case.kinds)

    def parameters(self) -> dict[str, Any]:
        """Arguments of `pytest.mark.parametrize`: every case, with the kinds of `as_written`."""
        found = [(case, kind) for case in self.cases for kind in as_written(case)]
        return {
            "argnames": ("case", "kind"),
            "argvalues": found,
            "ids": [f"{case.name}-{kind}" for case, kind in found],
        }


class Board(Table):
    """Programs that show known bugs of compilers; ``where`` says who reported each, by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.where: dict[str, str] = {}

    def known(self, where: str, *, kind: str = "plain", **facts: Any) -> Callable[[Any], Any]:
        """Add a function, as a table is called to."""
        return self._reported(where, self(kinds=(kind,), **facts))

    def known_stateful(self, where: str, *, kind: str = "plain", **facts: Any) -> Any:
        """Add a factory of `Program`."""
        return self._reported(where, self.stateful(kinds=(kind,), **facts))

    def _reported(self, where: str, add: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def reported(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.where[fn.__name__] = where
            return add(fn)  # type: ignore[no-any-return]

        return reported


def as_written(case: Case) -> tuple[str, ...]:
    """Kinds of tensors for the run of the program as acquired.

    Each case also runs in functional form and with traced gradients. By default the first two share
    the kinds, and the third takes every other kind that needs gradients.
    """
    return _every_other(case.kinds, case)


def in_functional_form(case: Case) -> tuple[str, ...]:
    """Kinds of tensors for the run of the program in functional form."""
    return _every_other(case.kinds, case, 1)


def with_gradients(case: Case) -> tuple[str, ...]:
    """Kinds of tensors for the run with traced gradients."""
    return _every_other(tuple(kind for kind in case.kinds if kind != "plain"), case)


def _every_other(kinds: tuple[str, ...], case: Case, first: int = 0) -> tuple[str, ...]:
    if FULL or len(kinds) < 2:
        return kinds
    return kinds[(zlib.crc32(case.name.encode()) + first) % 2 :: 2]


def modules_in(
    folder: Path, but: Collection[str] = (), pattern: str = "test_*.py"
) -> Iterator[ModuleType]:
    """Import the test files of ``folder`` as modules, without those named in ``but``.

    A module with a `Table` has it as ``case``.
    """
    for path in sorted(folder.glob(pattern)):
        if path.name not in but:
            name = f"{folder.name}_{path.stem}_{next(_serial)}"
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            yield module


def cases_in(folder: Path, but: Collection[str] = ()) -> list[tuple[Case, str]]:
    """Every case of the tables in test files, with every kind."""
    tables = (getattr(module, "case", None) for module in modules_in(folder, but))
    return [pair for table in tables if table is not None for pair in table.each()]


def run_case(case: Case, kind: str, *, jit: Jit = tj.jit, **options: Any) -> Report:
    """Check one case on tensors of one kind; ``options`` are `check`'s.

    :raises AssertionError: if it differs from eager, or raises or breaks otherwise than the case
        says.
    """
    scenes = [placed(layout, kind) for layout in case.layouts]
    report = check(case.make, scenes, jit=jit, create_graph=case.create_graph, **options)
    assert report.ok, f"{case.name}:\n{report}"
    raised = any(report.raised)
    assert raised == (kind in case.raises), f"eager raises {report.raised}"
    # How far capture came before eager's error says nothing.
    if not raised and not left_to_this_version(report.fallbacks):
        assert bool(report.fallbacks) == (kind in case.breaks), f"fallbacks: {report.fallbacks}"
    return report
