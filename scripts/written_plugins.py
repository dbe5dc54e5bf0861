"""Packages that ``tj new-plugin`` writes, built and used in an environment of wheels.

A step of ``check_wheels.py``: the tests of a package pass as they were written, each of the ways to
choose a plugin chooses it, and uninstalling leaves nothing behind. One kind is tried, or, with
``TJ_FULL=1``, each.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from check_wheels import Environment

KINDS = ("fusion", "executor", "transform", "gradient", "subclass", "frontend")
"""The first of these has regions and programs that are kept on disk."""

USED = """
import tj_core as tj
import torch


def f(x):
    return (x * 2 + 1).tanh()


x = torch.rand(3, 4)
jitted = tj.jit(f, plugins=["{name}", "torch"])
torch.testing.assert_close(jitted(x), f(x))
plugins = jitted.__tj__.session.plugins.names
assert plugins == ("{name}", "torch"), plugins
"""
"""A program of a user's, which names the plugin in the call."""


def check_written_plugins(clean: Environment, folder: Path) -> None:
    """Write, install, use and uninstall a package of each kind, or of the first."""
    kinds = KINDS if os.environ.get("TJ_FULL") == "1" else KINDS[:1]
    for kind in kinds:
        before = _Left.of(clean)
        package = _installed(clean, folder.resolve(), kind)
        arguments = ["-c", str(package / "pyproject.toml"), "-p", "no:cacheprovider"]
        print(clean.run("python", "-m", "pytest", *arguments, str(package / "tests")), end="")
        _same(before.cache, _Left.of(clean).cache, f"the tests of the kind {kind}: the cache")
        if kind == kinds[0]:
            _check_choices(clean, _name(kind))
        clean.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", f"tj-acme-{kind}")
        _check_left(clean, before, kind)


def _name(kind: str) -> str:
    return f"acme_{kind}"


def _installed(clean: Environment, folder: Path, kind: str) -> Path:
    """Write the package of a plugin, build its wheel and install that."""
    said = clean.run(
        "tj", "new-plugin", _name(kind), "--kind", kind, "--into", str(folder), "--json"
    )
    package, dist = Path(json.loads(said)["folder"]), folder / f"dist-{kind}"
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(dist)]
    subprocess.run(build, cwd=package, check=True)
    clean.install("--no-deps", *map(str, dist.glob("*.whl")))
    clean.run("python", "-m", "pip", "check")
    return package


# ------------------------------------------------------------------------------- choosing


def _check_choices(clean: Environment, name: str) -> None:
    """Choose the plugin in the file, the environment, the command line and the call."""
    chosen = [name, "torch"]
    with _file(clean.elsewhere / "pyproject.toml", f"[tool.tj]\nplugins = {json.dumps(chosen)}\n"):
        _require_chosen(clean, chosen, "[tool.tj]")
    with _variable(clean, "TJ_PLUGINS", ",".join(chosen)):
        _require_chosen(clean, chosen, "TJ_PLUGINS")
    _require_chosen(clean, chosen, "--plugins", "--plugins", ",".join(chosen))
    with _file(clean.elsewhere / "user.py", USED.format(name=name)):
        clean.run("python", "-I", str(clean.elsewhere / "user.py"))


def _require_chosen(clean: Environment, chosen: list[str], how: str, *options: str) -> None:
    listed = json.loads(clean.run("tj", *options, "plugins", "--json"))
    loaded = [plugin["name"] for plugin in listed if plugin["state"] == "loaded"]
    if loaded != chosen:
        sys.exit(f"wheels: {how} chooses {chosen}, and {loaded} are loaded")


@contextlib.contextmanager
def _file(path: Path, text: str) -> Iterator[None]:
    path.write_text(text, "utf-8")
    try:
        yield
    finally:
        path.unlink()


@contextlib.contextmanager
def _variable(clean: Environment, name: str, value: str) -> Iterator[None]:
    clean.environ[name] = value
    try:
        yield
    finally:
        del clean.environ[name]


# ------------------------------------------------------------------------------- uninstalling


@dataclass(frozen=True)
class _Left:
    """State of an environment: installed files, entry points of all groups, files in the cache."""

    files: set[str]
    entries: set[str]
    cache: set[str]

    @classmethod
    def of(cls, clean: Environment) -> _Left:
        """The state now. Compiled files count by their folder: imports make those of others."""
        paths = [p for top in (clean.packages, clean.bin) for p in top.rglob("*")]
        files = {str(p) for p in paths if p.suffix != ".pyc" and p.name != "__pycache__"}
        files |= {str(p.parent) for p in paths if p.suffix == ".pyc" and "acme" in str(p)}
        said = clean.python(
            """
            import json
            from importlib.metadata import distributions
            found = [e for d in distributions() for e in d.entry_points]
            print(json.dumps([f"{e.group} {e.name} {e.value}" for e in found]))
            """
        )
        return cls(files, {*json.loads(said)}, {str(p) for p in clean.cache.rglob("*")})


def _check_left(clean: Environment, before: _Left, kind: str) -> None:
    """Compare with what was there before the plugin was installed."""
    after = _Left.of(clean)
    _same(before.files, after.files, f"uninstalling the kind {kind}: files")
    _same(before.entries, after.entries, f"uninstalling the kind {kind}: entry points")
    if _name(kind) in clean.plugins():
        sys.exit(f"wheels: {_name(kind)} is listed after it was uninstalled")
    # Programs that users ran with the plugin are the cache's, which one command empties.
    clean.run("tj", "cache", "clear")
    kept = [path for path in clean.cache.rglob("*") if path.is_file() and path.suffix != ".TAG"]
    if kept:
        sys.exit(f"wheels: after `tj cache clear` there are {kept}")


def _same(before: set[str], after: set[str], what: str) -> None:
    if before != after:
        sys.exit(f"wheels: {what}: there are {sorted(after - before)} more, "
                 f"and {sorted(before - after)} are gone")  # fmt: skip
