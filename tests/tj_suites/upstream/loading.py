"""Loads a test file as if it was run from its own folder."""

from __future__ import annotations

import importlib.util
import sys
import unittest
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tj_suites.upstream import older

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

__all__ = ["load", "tests_of"]


def load(file: Path) -> ModuleType:
    """Import ``file``, with stand-ins for names that PyTorch no longer has."""
    root = next((p for p in file.parents if p.name == "test"), file.parent)
    sys.path[:0] = dict.fromkeys([str(file.parent), str(root)])
    supplied: set[tuple[str, str]] = set()
    while True:
        try:
            module = _load(file)
        except ImportError as error:
            lacking = older.missing(error)
            if lacking is None or lacking in supplied:
                raise
            supplied.add(lacking)
            older.supply(*lacking)
        else:
            older.adapt(module)
            return module


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[file.stem]
        raise
    return module


def tests_of(  # no test, though PT028 goes by the name
    file: Path,
    adapt: Callable[[ModuleType], None] = lambda module: None,  # noqa: PT028
) -> list[unittest.TestCase]:
    """Every test of a file, which ``adapt`` changes before."""
    module = load(file)
    adapt(module)
    return list(_flat(unittest.defaultTestLoader.loadTestsFromModule(module)))


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test
