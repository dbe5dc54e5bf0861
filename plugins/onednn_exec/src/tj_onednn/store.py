"""Measured times on disk: a JSON file for each PyTorch, processor and number of threads.

The file is replaced atomically, so a reader never sees half of one. Of two processes that write at
once, one may lose its measurements; they are made again then.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tj_core.extend import TjWarning, check_own, own_folder, replace_file
from tj_core.internal import is_own

from tj_onednn.timing import Times

__all__ = ["Machine", "Store", "processor"]

FORM = 1
"""Version of the file format, part of the file's name: files of other versions are left alone."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine that measured times apply to."""

    torch: str
    processor: str
    threads: int

    @property
    def file(self) -> str:
        """Name of the file with the times."""
        text = json.dumps([FORM, asdict(self)])
        return f"products-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


@dataclass
class Store:
    """Times for ``machine``, in a file of ``folder``; None keeps them in memory alone."""

    folder: Path | None
    machine: Machine
    known: dict[str, Times] | None = field(default=None, init=False)
    warned: bool = field(default=False, init=False)

    def get(self, key: str) -> Times | None:
        """Times of ``key``; None if they have not been measured."""
        if self.known is None:
            self.known = self.read()
        return self.known.get(key)

    def put(self, key: str, times: Times) -> None:
        """Keep ``times``, on disk too if they are stable."""
        self.get(key)
        assert self.known is not None
        self.known[key] = times
        if times.stable and self.folder is not None:
            self.write()

    def folder_id(self) -> str | None:
        """A text of the folder's own, which stays as it is; None if there is no such folder."""
        if self.folder is None:
            return None
        path = self.folder / "id.json"
        try:
            own_folder(self.folder)
            with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
                file.write(json.dumps({"form": FORM, "title": uuid.uuid4().hex}))
            return path.read_text("utf-8") or None
        except OSError as error:
            self.warn(f"{path} cannot be written", error)
            return None

    def read(self) -> dict[str, Times]:
        """Read the file; no times if there is none, or it cannot be used."""
        if self.folder is None:
            return {}
        path = self.folder / self.machine.file
        try:
            check_own(self.folder)
            if not is_own(path):
                raise PermissionError(f"others than this user can write to {path}")
            return _parsed(path.read_text("utf-8"), self.machine)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            self.warn(f"the measured times in {path} cannot be used, and are measured again", error)
            return {}

    def write(self) -> None:
        """Replace the file by one with all known times, and the times that other processes have
        added.
        """
        assert self.folder is not None
        assert self.known is not None
        path = self.folder / self.machine.file
        try:
            own_folder(self.folder)
            # Another process may have written since this one read.
            self.known = self.read() | self.known
            replace_file(path, _text(self.known, self.machine))
        except OSError as error:
            self.warn(f"measured times are not kept: {path} cannot be written", error)

    def warn(self, text: str, error: Exception) -> None:
        """Warn, once, of an error with the file."""
        if not self.warned:
            self.warned = True
            warnings.warn(
                TjWarning(f"tj-onednn: {text} ({type(error).__name__}: {error})"), stacklevel=2
            )


def _text(times: Mapping[str, Times], machine: Machine) -> str:
    kept = {key: [t.theirs, t.mine] for key, t in sorted(times.items()) if t.stable}
    title = f"times of {len(kept)} products, {machine.threads} threads"
    document = {"form": FORM, "title": title, "machine": asdict(machine), "seconds": kept}
    return json.dumps(document, indent=1)


def _parsed(text: str, machine: Machine) -> dict[str, Times]:
    document: Any = json.loads(text)
    if document["form"] != FORM or document["machine"] != asdict(machine):
        raise ValueError("it is of another machine or another version")
    return {key: Times(_seconds(a), _seconds(b)) for key, (a, b) in document["seconds"].items()}


def _seconds(value: Any) -> float:
    # JSON has NaN and Infinity, too: by a ratio of these any kernel would be chosen.
    if type(value) is not float or not 0 < value < 1e6:
        raise ValueError(f"{value!r} is no time")
    return value


def processor() -> str:
    """Model of the processor, as the system reports it."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return f"{platform.machine()} {platform.processor()}"
    first = info.read_text("utf-8", "replace").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    names = ("model name", "cpu family", "model", "stepping", "CPU part", "CPU variant")
    found = [fields[name] for name in names if name in fields]
    return " ".join([platform.machine(), *found])
