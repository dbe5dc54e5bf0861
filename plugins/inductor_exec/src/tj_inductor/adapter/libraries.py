"""Extension modules of C++ kernels, found again by their text.

Inductor keeps what it has built under its command line, flags for the processor's vectors included.
To know these it asks the compiler, and loads trial programs in processes of their own: a second of
CPU time in each process, whether or not there is something to build. A record, kept beside, says
which file came of a text where all was equal that the flags are chosen by. Inductor loads any file
that is there, and half of one ends the process: one of another size than when it was built goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tj_core.extend import TjWarning, own_folder, replace_file

from tj_inductor.adapter.features import is_lost
from tj_inductor.adapter.linking import link_flags
from tj_inductor.adapter.names import FOUND_AGAIN
from tj_inductor.adapter.priority import lower_priority
from tj_inductor.adapter.settings import fingerprint
from tj_inductor.adapter.vectors import try_few

__all__ = ["announce_data_pointers", "builds_kernels", "flags", "library"]

FLAGS = () if sys.platform == "win32" else ("-fwrapv",)
"""Options of the C++ compiler that change results: integers that overflow wrap around.

Without them ``x.abs() >= 0`` is true of the smallest integer, whose absolute value is itself.
PyTorch's own kernels are not compiled so, but take their operands one operation at a time.
"""


def flags() -> tuple[str, ...]:
    """Options of the C++ compiler beside Inductor's."""
    return (*FLAGS, *link_flags())


@dataclass(frozen=True, slots=True)
class Built:
    """A file in Inductor's folder, as it was when it had been loaded; ``key`` is its name there."""

    key: str
    file: str
    size: int
    time: int

    @classmethod
    def of(cls, key: str, file: str) -> Built:
        """``file`` as it is now, a path in Inductor's folder."""
        from tj_inductor.adapter.names import cache_dir

        found = os.stat(Path(cache_dir(), file))
        return cls(key, file, found.st_size, found.st_mtime_ns)


def announce_data_pointers() -> None:
    """Say where built libraries find the function that reads the memory of tensors.

    They ask an environment variable when they are loaded, as Inductor's own loader sets it.
    """
    from tj_inductor.adapter.names import _torchinductor_pyobject_tensor_data_ptr

    variable = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
    os.environ[variable] = str(_torchinductor_pyobject_tensor_data_ptr)


def builds_kernels() -> bool:
    """Tell whether the process has imported what builds and loads kernels."""
    return "torch._inductor.codecache" in sys.modules


def library(source: str) -> Any:
    """The extension module of ``source``: as it was built before, if nothing has changed."""
    from tj_inductor.adapter.names import CppPythonBindingsCodeCache

    record = _record(source)
    found = None if record is None else _loaded(record)
    if found is not None:
        return found
    try_few()
    with lower_priority():
        made = CppPythonBindingsCodeCache.load_async(source, submit_fn=None, extra_flags=flags())
        module = made() if callable(made) else made
    if record is not None:
        with contextlib.suppress(OSError, AttributeError, ValueError):  # then it is built again
            file = Path(module.__file__).relative_to(record.parent.parent).as_posix()
            own_folder(record.parent)
            replace_file(record, json.dumps(asdict(Built.of(module.key, file))))
    return module


def _record(source: str) -> Path | None:
    """Path of the record of the file built from ``source``; None if the settings are not known."""
    known = None if is_lost(FOUND_AGAIN) else fingerprint({})
    if known is None:
        return None
    from tj_inductor.adapter.names import cache_dir

    facts = (known, *FLAGS, sys.version, sys.prefix, torch.__file__, source)
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    return Path(cache_dir(), "tj", f"{name}.json")


def _loaded(record: Path) -> Any:
    """The module of ``record``; None if there is none, or its file is another now."""
    from tj_inductor.adapter.names import CppPythonBindingsCodeCache, cache_dir

    try:
        text = record.read_text("utf-8")
        own_folder(record.parent)
        built = Built(**json.loads(text))
        if built != Built.of(built.key, built.file):
            _discard(built)
            return None
    except (OSError, TypeError, ValueError):
        return None
    try:
        path = str(Path(cache_dir(), built.file))
        return CppPythonBindingsCodeCache._load_library(path, built.key)
    except Exception:  # whatever is wrong: Inductor builds it, and says so if it cannot
        entry = getattr(CppPythonBindingsCodeCache, "entry_function", "")
        sys.modules.pop(f"{built.key}.{entry}", None)
        return None


def _discard(built: Built) -> None:
    """Remove the file of ``built`` if it is not of its size, under the lock of who builds it.

    :raises OSError: if that cannot be done.
    """
    from tj_inductor.adapter.names import LOCK_TIMEOUT, FileLock, cache_dir, get_lock_dir

    path = Path(cache_dir(), built.file)
    with FileLock(str(Path(get_lock_dir(), f"{built.key}.lock")), timeout=LOCK_TIMEOUT):
        size = path.stat().st_size
        if size == built.size:
            return
        path.unlink()
    text = f"{path} has {size} bytes, and had {built.size} when it was built; it is built again"
    warnings.warn(TjWarning(f"tj-inductor: {text}"), stacklevel=2)
