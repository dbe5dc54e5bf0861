"""Locks of entries on disk: of several processes that need one at once, one makes it.

The lock of an entry is a file beside it, locked by the system (``fcntl.lockf``), which unlocks it
when the process ends, however it ends. Whoever has made the entry removes the file before it
unlocks, so that those that wait can tell: no file any more, and the work is done; still the file,
and its process has died. Without locks, as on Windows or in a folder that cannot be written to,
each process makes its own.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["LONGEST", "making"]

LONGEST = 900.0
"""Seconds after which a process does not wait any longer, and makes the entry itself."""

_POLL = 0.02
"""Seconds between two tries. A blocking call could not say for whom it waits."""

_PATIENCE = 10.0
"""Seconds after which a process that waits says so."""

_BUSY = (errno.EACCES, errno.EAGAIN)

log = logging.getLogger("tj.cache")

# The operating system gives locks to processes: two sessions of one share what it holds.
_held: set[str] = set()
_lock = threading.Lock()
# A child does not inherit the locks.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held.clear)


@contextlib.contextmanager
def making(path: Path, longest: float = LONGEST) -> Iterator[bool]:
    """Hold the lock of the entry ``path`` inside, for a process that is about to make it.

    Gives True, or False if there is no lock.

    If another process has it, wait until that one is done, and hold none: the entry is there now,
    or it is one that cannot be kept, which each process makes. So look for it again inside.
    """
    name = os.fspath(path.with_suffix(".lock"))
    with _lock:
        # `lockf` is for processes: closing one of two open files would unlock the other's, too.
        mine = fcntl is not None and name not in _held
        if mine:
            _held.add(name)
    if not mine:
        yield False
        return
    handle: int | None = None
    try:
        with contextlib.suppress(OSError):  # writing the entry says what is wrong with the folder
            handle = _locked(name, longest)
        yield handle is not None
    finally:
        if handle is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
            os.close(handle)
        with _lock:
            _held.discard(name)


def _locked(name: str, longest: float) -> int | None:
    """The open, locked file ``name``; None if another process had it locked, and is done.

    :raises OSError: if the file cannot be made, or the file system has no locks.
    """
    began, said = time.monotonic(), False
    while True:
        handle, waited = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), False
        try:
            while not _try(handle):
                waited = True
                seconds = time.monotonic() - began
                if seconds > longest:
                    log.warning("%s is locked for %.0f s: not waited for any longer", name, seconds)
                    os.close(handle)
                    return None
                if seconds > _PATIENCE and not said:
                    said = True
                    log.info("waits for another process, which compiles what %s is for", name)
                time.sleep(_POLL)
            if _is_at(handle, name):
                return handle
        except BaseException as error:
            if isinstance(error, OSError):  # a file system without locks: nobody has this one
                with contextlib.suppress(OSError):
                    os.unlink(name)
            os.close(handle)
            raise
        os.close(handle)
        if waited:
            return None


def _try(handle: int) -> bool:
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def _is_at(handle: int, name: str) -> bool:
    """Test if the open file is still the one called ``name``, which nobody has removed."""
    try:
        found = os.stat(name)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(handle))
