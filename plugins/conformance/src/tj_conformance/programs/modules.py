"""Modules that are made of the text of a program."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import sys
import types
from collections.abc import Iterator

__all__ = ["module_of"]

# Numbers of modules that are made: `sys.modules` and `linecache` are the process's.
_serial = itertools.count()


@contextlib.contextmanager
def module_of(text: str) -> Iterator[types.ModuleType]:
    """Run ``text`` as a module, which is there while the program runs."""
    module = types.ModuleType(f"made_up_program_{next(_serial)}")
    file = f"<{module.__name__}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    sys.modules[module.__name__] = module  # Dynamo imports it to get at its globals
    try:
        exec(compile(text, file, "exec"), vars(module))
        yield module
    finally:
        del linecache.cache[file], sys.modules[module.__name__]
