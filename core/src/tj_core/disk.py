"""What is kept on disk for later processes: entries of text, in a folder of the user's own.

An entry is a JSON file, so that nothing is unpickled, and holds the whole key that it was kept
under. It is written beside its place and moved there, so that a reader sees all of it or nothing.
A folder that others can write to is not used, since what is kept may be run.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tj_core.errors import TjWarning

__all__ = ["Entries", "cache_folder", "check_own", "is_own", "own_folder", "replace_file"]

MOST = 4096
"""Entries in a folder: the ones that nobody has used for longest make room."""

FORM = 1
"""Raised when the meaning of entries changes: those of another form are not used."""


def cache_folder(configured: str | None = None) -> Path | None:
    """The folder for what programs may make again; ``configured`` is what ``cache_dir`` says.

    None where that is ``"none"``, or the user has no home, and nothing is kept.
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
        except RuntimeError:  # as in a container, where nobody knows the user
            return None
    return base / "tj"


def is_own(path: Path | int) -> bool:
    """Whether a file or folder is this user's, and nobody else's to write."""
    return _shared(path) is None


def _shared(path: Path | int) -> str | None:
    """Why a file or folder is not this user's alone; None if it is."""
    if not hasattr(os, "getuid"):  # Windows: folders of users are their own
        return None
    found = os.stat(path)
    if found.st_uid != os.getuid():
        return f"belongs to {_user(found.st_uid)}, and this is {_user(os.getuid())}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written to by others than this user (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _replaceable(folder: Path) -> str | None:
    """Why others can put another folder into the place of one in ``folder``; None if they cannot.

    In a sticky folder, as /tmp is, nobody can. What belongs to root, root may do anywhere.
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
    """User ``number``, by name if that is known."""
    import pwd

    try:
        return f"user {pwd.getpwuid(number).pw_name!r} ({number})"
    except KeyError:
        return f"user {number}"


def check_own(folder: Path) -> None:
    """See to it that ``folder`` is this user's, and that nobody else can put another in its place.

    :raises OSError: if it is not, or is not there; the message says whose it is.
    """
    for path, reason in ((folder, _shared(folder)), (folder.parent, _replaceable(folder.parent))):
        if reason is not None:
            raise PermissionError(
                f"{path} {reason}; it is not used, since what it holds may be run"
            )


def own_folder(path: Path) -> None:
    """Make the folder ``path``, for this user alone, and the one that it is in.

    :raises OSError: if it cannot be made, or others can write to it.
    """
    for folder in (path.parent, path):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_own(path)


def replace_file(path: Path, text: str) -> None:
    """Put ``text`` into ``path`` at once: no reader sees half of it.

    :raises OSError: if that cannot be done.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@dataclass
class Entries:
    """Texts by key in ``folder``, ``most`` at a time.

    What goes wrong there is one warning, and nothing is kept.
    """

    folder: Path
    most: int = MOST
    warned: bool = field(default=False, init=False)

    def get(self, key: str) -> str | None:
        """What is kept under ``key``; None if nothing is, or nothing that can be used."""
        path = self.path(key)
        try:
            check_own(self.folder)
            with path.open(encoding="utf-8") as file:
                reason = _shared(file.fileno())
                if reason is not None:
                    raise PermissionError(f"it {reason}")
                value = _value(file.read(), key)
            with contextlib.suppress(OSError):  # a folder that can only be read is used, too
                os.utime(path)
            return value
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            self.warn(f"{path} cannot be used, and is made again", error)
            return None

    def put(self, key: str, value: str, title: str) -> None:
        """Keep ``value`` under ``key``; ``title`` is what lists say of it."""
        path = self.path(key)
        text = json.dumps({"form": FORM, "title": title, "key": key, "value": value})
        try:
            own_folder(self.folder)
            self.make_room()
            replace_file(path, text)
        except OSError as error:
            self.warn(f"{path} cannot be written", error)

    def make_room(self) -> None:
        """Remove entries, so that there is room for one more."""
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
        """The files of the entries, each with what it says of itself."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                yield path, str(json.loads(path.read_text("utf-8"))["title"])
            except (OSError, ValueError, TypeError, KeyError, RecursionError):
                yield path, "cannot be read"

    def warn(self, text: str, error: Exception) -> None:
        """Say once that something is wrong."""
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
