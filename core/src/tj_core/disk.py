"""Texts kept on disk for later processes, one file per entry, in a folder of the user's own.

An entry is a JSON file, so that nothing is unpickled, and holds its whole key. The file is written
under another name and then moved to its own, so that a reader sees the whole entry or none.
A folder that others can write to is not used, since entries may hold code that is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tj_core.disk_locks import making
from tj_core.errors import TjWarning

__all__ = [
    "TAG",
    "Entries",
    "cache_folder",
    "check_own",
    "is_own",
    "is_plugin_folder",
    "own_folder",
    "plugin_folder",
    "replace_file",
    "with_facts",
]

MOST = 4096
"""Number of entries in a folder; the least recently used make room."""

TAG = "CACHEDIR.TAG"
"""The name of the file that marks a folder of a plugin (https://bford.info/cachedir/)."""

SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"
"""The first line of that file."""

FORM = 1
"""Version of the file format, raised when the meaning of entries changes; others are not read."""


def cache_folder(configured: str | None) -> Path | None:
    """The folder of the caches; ``configured`` is the value of the option ``cache_dir``.

    A plugin has it as its own option: a field ``cache_dir: str | None = None`` of its dataclass.
    None, and nothing is kept, if the option is ``"none"`` or the user has no home folder.
    """
    if configured is not None:
        return Path(configured).expanduser() if configured not in ("", "none") else None
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        base = Path(os.environ["LOCALAPPDATA"])
    else:
        try:
            base = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
        except RuntimeError:  # no home folder: a container's user id may have no entry in passwd
            return None
    return base / "tj"


def plugin_folder(plugin: str, configured: str | None) -> Path | None:
    """Make the folder of the plugin called ``plugin`` in the folder of the caches.

    It is for all files and folders of the plugin's; ``tj cache`` lists and clears them. A file
    ``CACHEDIR.TAG`` says so, to programs for backups, too. ``configured`` and None: `cache_folder`.

    :raises OSError: if the folder cannot be made, or other users can write to it.
    """
    base = cache_folder(configured)
    if base is None:
        return None
    folder = base / plugin
    own_folder(folder)
    if not (folder / TAG).exists():
        replace_file(folder / TAG, f"{SIGNATURE}\n# Kept by tj for its plugin {plugin!r}.\n")
    return folder


def is_plugin_folder(folder: Path) -> bool:
    """Test if `plugin_folder` made ``folder``, so that all files in it may be removed."""
    try:
        return (folder / TAG).read_text("utf-8").startswith(SIGNATURE)
    except (OSError, UnicodeDecodeError):
        return False


def is_own(path: Path | int) -> bool:
    """Test if a file or folder belongs to the current user, and no other user can write to it."""
    return _shared(path) is None


def _shared(path: Path | int) -> str | None:
    """Reason not to trust a file or folder: its owner or its mode; None if there is none."""
    if not hasattr(os, "getuid"):  # Windows has no user ids; a user's folder is private there
        return None
    found = os.stat(path)
    if found.st_uid != os.getuid():
        return f"belongs to {_user(found.st_uid)}, and this is {_user(os.getuid())}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written to by others than this user (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _replaceable(folder: Path) -> str | None:
    """Reason why other users could replace a folder in ``folder``; None if there is no such reason.

    In a sticky folder, such as /tmp, only owners can. A folder of root is trusted.
    """
    if not hasattr(os, "getuid"):
        return None
    found = os.stat(folder)
    if found.st_uid not in (0, os.getuid()):
        return f"belongs to {_user(found.st_uid)}, and this is {_user(os.getuid())}"
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return f"can be written to by everybody (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _user(number: int) -> str:
    """User ``number`` in words, with the name if the system knows one."""
    import pwd

    try:
        return f"user {pwd.getpwuid(number).pw_name!r} ({number})"
    except KeyError:
        return f"user {number}"


def check_own(folder: Path) -> None:
    """Check that ``folder`` is the current user's, and that no other user can replace it.

    :raises OSError: if not, with the owner or the mode in the message; or if there is no folder.
    """
    for path, reason in ((folder, _shared(folder)), (folder.parent, _replaceable(folder.parent))):
        if reason is not None:
            raise PermissionError(
                f"{path} {reason}; it is not used, since what it holds may be run"
            )


def own_folder(path: Path) -> None:
    """Make the folder ``path``, with mode 0700, and the folders above that are missing.

    :raises OSError: if a folder cannot be made, or other users can write to it.
    """
    for folder in (path.parent, path):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_own(path)


def with_facts(files: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """``files`` with their facts, without those that another process has removed meanwhile."""
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            yield path, path.stat()


def replace_file(path: Path, text: str | bytes) -> None:
    """Write ``text`` to ``path`` atomically: readers see the old file or the whole new one.

    :raises OSError: if the file cannot be written.
    """
    # In the same folder: a replacement is atomic within a file system only.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@dataclass
class Entries:
    """Texts by key, in files in ``folder``; at most ``most`` of them.

    Errors of the file system give one warning per object; the entry is then neither read nor kept.
    """

    folder: Path
    most: int = MOST
    warned: bool = field(default=False, init=False)

    def get(self, key: str) -> str | None:
        """The text under ``key``; None if there is no entry, or none that can be read."""
        path = self.path(key)
        try:
            check_own(self.folder)
            with path.open(encoding="utf-8") as file:
                reason = _shared(file.fileno())  # of the open file, which no one can exchange
                if reason is not None:
                    raise PermissionError(f"it {reason}")
                value = _value(file.read(), key)
            with contextlib.suppress(OSError):  # a read-only folder is used, too
                os.utime(path)
            return value
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            self.warn(f"{path} cannot be used, and is made again", error)
            return None

    def put(self, key: str, value: str, title: str) -> None:
        """Keep ``value`` under ``key``; ``title`` describes the entry in lists (``tj cache``)."""
        path = self.path(key)
        text = json.dumps({"form": FORM, "title": title, "key": key, "value": value})
        try:
            own_folder(self.folder)
            self.make_room()
            replace_file(path, text)
        except OSError as error:
            self.warn(f"{path} cannot be written", error)

    @contextlib.contextmanager
    def making(self, keys: Iterable[str]) -> Iterator[None]:
        """Hold the locks of those of ``keys`` that have no entry; look for entries inside.

        Other processes that need the same entries wait meanwhile: see `tj_core.disk_locks`. All
        take the locks in one order, so that none waits for one that waits for it.
        """
        with contextlib.ExitStack() as held:
            for path in sorted({self.path(key) for key in keys}):
                if path.exists() or not self._can_lock():
                    continue
                if not held.enter_context(making(path)) and not path.exists():
                    break  # entries that cannot be kept: whoever waits for more waits for nothing
            yield

    def _can_lock(self) -> bool:
        try:
            own_folder(self.folder)
        except OSError:  # `get` or `put` says it
            return False
        return True

    def make_room(self) -> None:
        """Remove the least recently used entries until there is room for one more."""
        ages: dict[Path, float] = {}
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                ages[path] = path.stat().st_mtime
        for path in sorted(ages, key=ages.__getitem__)[: max(0, len(ages) + 1 - self.most)]:
            path.unlink(missing_ok=True)

    def path(self, key: str) -> Path:
        """The file for ``key``."""
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def titles(self) -> Iterator[tuple[Path, str]]:
        """The files of the entries, each with the entry's title."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield path, str(json.loads(path.read_text("utf-8"))["title"])
            except (OSError, ValueError, TypeError, KeyError, RecursionError):
                yield path, "cannot be read"

    def warn(self, text: str, error: Exception) -> None:
        """Warn that ``error`` made an entry unusable, once per object."""
        if not self.warned:
            self.warned = True
            reason = f"{type(error).__name__}: {error}"
            warnings.warn(TjWarning(f"tj: {text} ({reason})"), stacklevel=2)


def _value(text: str, key: str) -> str:
    document: Any = json.loads(text)
    if document["form"] != FORM or document["key"] != key:
        raise ValueError("it is of another version")
    value = document["value"]
    if not isinstance(value, str):
        raise TypeError("it holds no text")
    return value
