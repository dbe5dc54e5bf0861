"""Inductor's settings, and what compiled graphs depend on beside their programs."""

from __future__ import annotations

import functools
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tj_torch.extend import MissingNameError

from tj_inductor.adapter.features import TABLE

if TYPE_CHECKING:
    import contextlib

__all__ = ["cpp_compiler", "fingerprint", "settings"]


def settings(values: Mapping[str, object]) -> contextlib.AbstractContextManager[Any]:
    """Inductor's configuration with ``values``; those that this version does not have are left."""
    from tj_inductor.adapter.names import config

    patched: contextlib.AbstractContextManager[Any] = config.patch(
        {k: v for k, v in values.items() if _has_setting(k)}
    )
    return patched


@functools.cache
def _has_setting(name: str) -> bool:
    from tj_inductor.adapter.names import config

    found: Any = config
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None


def fingerprint(values: Mapping[str, object]) -> str | None:
    """Facts beside the graph that its compiled text depends on, with the settings ``values``.

    None if that is not known: of a setting that is an object of the program, or where this PyTorch
    lacks a name.
    """
    try:
        return _fingerprint(values)
    except (MissingNameError, AttributeError):
        return None


def _fingerprint(values: Mapping[str, object]) -> str | None:
    from tj_inductor.adapter.names import config

    with settings(values):
        found: dict[str, Any] = config.save_config_portable(ignore_private_configs=False)
        whole = config.get_config_copy()
    # `save_config_portable` leaves out the custom passes (`_cache_config_ignore_prefix` in
    # torch/_inductor/config.py), which change the text all the same.
    found |= {k: v for k, v in whole.items() if k.endswith(("_pass", "_passes"))}
    # The text of an object has its address, or nothing of what it does.
    if not all(map(_is_plain, found.values())):
        return None
    modes = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        os.environ.get("ATEN_CPU_CAPABILITY"),  # Inductor reads it when it chooses vectors
    )
    version = (torch.__version__, torch.version.git_version)
    return repr((version, _machine(), modes, sorted(TABLE.lost), sorted(found.items())))


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, str | int | float | bool):
        return True
    if isinstance(value, Mapping):
        return all(_is_plain(k) and _is_plain(v) for k, v in value.items())
    return isinstance(value, list | tuple | set | frozenset) and all(map(_is_plain, value))


def cpp_compiler() -> str | None:
    """The C++ compiler that Inductor would run; None if it finds none."""
    from tj_inductor.adapter.names import get_cpp_compiler

    try:
        return str(get_cpp_compiler())
    except RuntimeError:  # InvalidCxxCompiler
        return None


@functools.cache
def _machine() -> tuple[Any, ...]:
    """The processor and the C++ compiler."""
    from tj_inductor.adapter.names import get_cpp_compiler

    info = Path("/proc/cpuinfo")
    first = info.read_text("utf-8", "replace").partition("\n\n")[0] if info.exists() else ""
    # Kernels are built with `-march=native` (torch/_inductor/cpp_builder.py); other lines of the
    # file, as the clock speed, change all the time.
    kept = ("model name", "flags", "Features", "CPU part", "stepping")
    facts = sorted(line for line in first.splitlines() if line.startswith(kept))
    compiler = shutil.which(get_cpp_compiler()) or ""
    file = os.stat(compiler) if compiler else None
    # A compiler is replaced by another under the same path: size and time tell them apart.
    made = (os.path.realpath(compiler), file.st_size, file.st_mtime_ns) if file else ()
    return platform.machine(), torch.backends.cpu.get_cpu_capability(), tuple(facts), made
