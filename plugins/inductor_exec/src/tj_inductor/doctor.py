"""Findings for ``tj doctor``: the C++ compiler of regions on CPUs."""

from __future__ import annotations

import shutil
import subprocess

from tj_core.extend import Finding

from tj_inductor.adapter.settings import cpp_compiler

__all__ = ["findings"]

_REMEDY = (
    "apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), "
    "xcode-select --install (macOS), or set CXX to one"
)


def findings() -> tuple[Finding, ...]:
    """Examine the compiler."""
    name = cpp_compiler()
    path = None if name is None else shutil.which(name)
    if path is None:
        text = (
            f"there is no C++ compiler{f' {name!r}' if name else ''}: regions on CPUs run unfused"
        )
        return (Finding("compiler", text, "bad", _REMEDY),)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        text = f"{path} does not run: {done.stderr.strip() or done.returncode}"
        return (Finding("compiler", text, "bad", _REMEDY),)
    return (Finding("compiler", f"{path}: {done.stdout.partition(chr(10))[0]}"),)
