"""Libraries without functions that stand in for PyTorch's while a kernel is linked.

A linker reads the names of all functions of the libraries that a kernel is linked to, and PyTorch's
have some hundred thousand: a third of the time that the compiler takes for a small kernel. Nothing
comes of it but the names of the libraries in the kernel's file, which the process has loaded
already, and which it looks for functions when it loads the kernel. Libraries of the same names
without a function do as well. They are built once for each user, and tried.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tj_core.extend import check_own, own_folder

from tj_inductor.adapter.features import is_lost
from tj_inductor.adapter.names import LINKED

__all__ = ["LIBRARIES", "link_flags"]

LIBRARIES = ("torch", "torch_cpu", "torch_python")
"""PyTorch's libraries that Inductor links kernels to."""

NEED = ("-Wl,--push-state,--no-as-needed", *(f"-l{n}" for n in LIBRARIES), "-Wl,--pop-state")
"""Options that put the names of the libraries into a file, though it takes no function of them."""


def link_flags() -> tuple[str, ...]:
    """Options of the C++ compiler that link to empty libraries; none where that does not work."""
    if sys.platform != "linux" or is_lost(LINKED):
        return ()
    from tj_inductor.adapter.names import default_cache_dir, get_cpp_compiler

    return _flags(get_cpp_compiler(), default_cache_dir())


@functools.cache
def _flags(compiler: str, folder: str) -> tuple[str, ...]:
    # The folder is one for all folders of built files, as that of Inductor's precompiled headers,
    # which are kept under a hash of these flags.
    facts = f"{compiler} {NEED}"
    made = Path(folder, "tj", f"link-{hashlib.sha256(facts.encode()).hexdigest()[:16]}")
    if len(str(made).split()) > 1:  # Inductor joins options by spaces
        return ()
    try:
        own_folder(made.parent)
        if not made.exists():
            _make(compiler, made)
        check_own(made)
    except (OSError, subprocess.SubprocessError):  # Inductor's way takes longer, and is as good
        return ()
    return (f"-L{made}", *NEED)


def _make(compiler: str, folder: Path) -> None:
    """Build the libraries in ``folder``, and see that a process loads a file linked to them.

    :raises OSError: if no file can be written, or none loaded.
    :raises subprocess.SubprocessError: if the compiler fails.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="link-", suffix=".new") as name:
        new = Path(name, "made")
        new.mkdir(mode=0o700)
        for library in LIBRARIES:
            file = f"lib{library}.so"
            _build(compiler, new / file, [f"-Wl,-soname,{file}"])
        trial = Path(name, "trial.so")
        _build(compiler, trial, [f"-L{new}", *NEED])
        ctypes.CDLL(str(trial))
        with contextlib.suppress(OSError):  # another process was first
            os.rename(new, folder)


def _build(compiler: str, file: Path, flags: Sequence[str]) -> None:
    command = [compiler, "-shared", "-fPIC", "-nostdlib", "-x", "c++", os.devnull, *flags]
    subprocess.run([*command, "-o", str(file)], check=True, capture_output=True, timeout=60)
