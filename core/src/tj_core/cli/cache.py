"""The command ``tj cache``, which lists and clears the caches on disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tj_core.cli.console import print_json, print_table
from tj_core.disk import TAG, Entries, cache_folder, is_plugin_folder, with_facts
from tj_core.host.config import load_config
from tj_core.host.discovery import discover

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["add_cache"]

CORE = ("programs", "regions")
"""The core's folders in the cache folder; plugins have folders with their names."""


def add_cache(commands: Any) -> None:
    """Add the command ``cache`` to ``commands``, the subparsers of ``tj``."""
    parser = commands.add_parser("cache", help="show or clear what is kept for later processes")
    parser.add_argument("action", nargs="?", default="size", choices=sorted(_ACTIONS))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    folder = cache_folder(load_config(args.config, {}).core.cache_dir)
    if folder is None:
        if args.json:
            print_json({"folder": None})
        else:
            print('nothing is kept: cache_dir is "none"')
        return 0
    if args.json:
        print_json({"folder": str(folder), **_DATA[args.action](folder)})
        return 0
    print(folder)
    _ACTIONS[args.action](folder)
    return 0


def _sizes(folder: Path) -> dict[str, Any]:
    kinds = []
    for kind, files in _kinds(folder):
        sizes = [facts.st_size for _, facts in with_facts(files)]
        kinds.append({"kind": kind, "files": len(sizes), "bytes": sum(sizes)})
    return {"kinds": kinds}


def _size(folder: Path) -> None:
    kinds = _sizes(folder)["kinds"]
    rows = [(k["kind"], str(k["files"]), f"{k['bytes'] / 1e6:.1f} MB") for k in kinds]
    print_table(("kind", "files", "size"), rows)


def _files(folder: Path) -> dict[str, Any]:
    found = []
    for kind, files in _kinds(folder):
        place = folder / kind
        titles = {} if is_plugin_folder(place) else dict(Entries(place).titles())
        for path, facts in with_facts(files):
            days = (time.time() - facts.st_mtime) / 86400
            entry = {
                "kind": kind,
                "file": path.relative_to(place).as_posix(),
                "bytes": facts.st_size,
            }
            found.append({**entry, "days": round(days, 1), "what": titles.get(path, "")})
    return {"files": found}


def _list(folder: Path) -> None:
    rows = [
        (f["kind"], f["file"], f"{f['bytes'] / 1e3:.1f} kB", f"{f['days']:.1f} days", f["what"])
        for f in _files(folder)["files"]
    ]
    print_table(("kind", "file", "size", "age", "what"), rows)


def _clear(folder: Path) -> None:
    print(f"removed {_removed(folder)['removed']} files")


def _removed(folder: Path) -> dict[str, Any]:
    count = 0
    for _, files in _kinds(folder):
        for path in files:
            with contextlib.suppress(FileNotFoundError):  # another process has cleared it
                path.unlink()
                count += 1
    return {"removed": count}


_DATA: dict[str, Callable[[Path], dict[str, Any]]] = {
    "size": _sizes,
    "list": _files,
    "clear": _removed,
}

_ACTIONS: dict[str, Callable[[Path], None]] = {"size": _size, "list": _list, "clear": _clear}


def _kinds(folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """The kinds of entries, each with its files.

    In a folder that a plugin got from `plugin_folder`, all files are the plugin's, also after it
    was uninstalled. Of other folders only files of the form that tj writes count: ``cache_dir`` may
    name a folder with files of the user's.
    """
    marked = {found.name for found in folder.glob("*") if is_plugin_folder(found)}
    for kind in dict.fromkeys((*CORE, *sorted({found.name for found in discover()} | marked))):
        if kind in marked:
            files = [p for p in sorted((folder / kind).rglob("*")) if p.is_file() and p.name != TAG]
        else:
            found = sorted((folder / kind).glob("*"))
            # Locks and unfinished files, too, which a process that was killed has left.
            files = [p for p in found if p.suffix in (".json", ".lock", ".new")]
        if files:
            yield kind, files
