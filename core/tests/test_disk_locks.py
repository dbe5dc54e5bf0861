"""Locks of entries: of several processes one makes an entry, and none waits for a dead one."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from tj_core import disk_locks
from tj_core.disk import Entries
from tj_core.disk_locks import making
from tj_core.errors import TjWarning

if disk_locks.fcntl is None:
    pytest.skip("this system has no fcntl: each process makes its own", allow_module_level=True)

SCRIPT = """
import os, sys, time
from pathlib import Path
from tj_core.disk import Entries
folder, log, keeps = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "keeps"
def say(text):
    with open(log, "a") as file:
        file.write(f"{text} {os.getpid()}\\n")
entries = Entries(folder)
say("ready")
while not Path(f"{log}.go").exists():
    time.sleep(0.001)
with entries.making(["a", "b"]):
    for key in "ba":
        if entries.get(key) is None:
            say(f"makes {key}")
            time.sleep(0.2)
            if keeps:
                entries.put(key, "made", "")
    say("ends")
"""


class Group:
    """Processes that run `SCRIPT` from the same moment on."""

    def __init__(self, tmp_path: Path, number: int, keeps: str = "keeps") -> None:
        self.folder, self.log = tmp_path / "entries", tmp_path / "log"
        command = [sys.executable, "-c", SCRIPT, str(self.folder), str(self.log), keeps]
        self.processes = [subprocess.Popen(command) for _ in range(number)]
        self.wait_for("ready", number)
        Path(f"{self.log}.go").touch()

    def wait_for(self, text: str, number: int = 1) -> list[str]:
        """The lines that begin with ``text``, once there are ``number`` of them."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = [line for line in self.lines() if line.startswith(text)]
            if len(found) >= number:
                return found
            time.sleep(0.005)
        raise AssertionError(self.lines())

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def end(self) -> list[str]:
        assert [p.wait(20) for p in self.processes] == [0] * len(self.processes)
        return [line.rpartition(" ")[0] for line in self.lines() if "ready" not in line]


def test_of_four_processes_one_makes_each_entry(tmp_path: Path) -> None:
    group = Group(tmp_path, 4)
    assert sorted(group.end()) == ["ends"] * 4 + ["makes a", "makes b"]
    assert sorted(p.suffix for p in group.folder.iterdir()) == [".json", ".json"]


def test_what_cannot_be_kept_is_made_by_all_at_once(tmp_path: Path) -> None:
    """They wait for the first; then none waits for another."""
    said = Group(tmp_path, 3, "keeps nothing").end()
    assert sorted(said) == ["ends"] * 3 + ["makes a"] * 3 + ["makes b"] * 3
    first = said.index("ends")
    assert said[:first] == ["makes b", "makes a"]
    assert said[first + 1 : first + 3] == ["makes b"] * 2
    assert not list((tmp_path / "entries").iterdir())


def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    group = Group(tmp_path, 3)
    (line,) = group.wait_for("makes b")
    victim = int(line.split()[-1])
    os.kill(victim, signal.SIGKILL)
    others = [p for p in group.processes if p.pid != victim]
    assert [p.wait(20) for p in others] == [0, 0]
    makers = [line for line in group.lines() if line.startswith("makes")]
    assert [line.split()[1] for line in makers] == ["b", "b", "a"], "one took its place"
    assert makers[1].split()[2] == makers[2].split()[2]
    (killed,) = (p for p in group.processes if p.pid == victim)
    assert killed.wait() == -signal.SIGKILL
    assert sorted(p.suffix for p in group.folder.iterdir()) == [".json", ".json"]


def test_a_process_that_is_there_for_ever_is_not_waited_for(tmp_path: Path) -> None:
    group = Group(tmp_path, 1)
    group.wait_for("makes")
    (process,) = group.processes
    process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with making(Entries(group.folder).path("a"), longest=0.1):
            assert 0.1 < time.monotonic() - began < 10
    finally:
        process.send_signal(signal.SIGCONT)
    group.end()


def test_a_process_does_not_wait_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "entry.json"
    done = threading.Event()

    def nested() -> None:
        with making(path):
            done.set()

    with making(path):
        with making(path):
            pass
        thread = threading.Thread(target=nested)
        thread.start()
        assert done.wait(5)
        thread.join()
        assert path.with_suffix(".lock").exists(), "the first still has it"
    assert not path.with_suffix(".lock").exists()


def test_an_error_inside_unlocks(tmp_path: Path) -> None:
    path = tmp_path / "entry.json"
    with pytest.raises(ZeroDivisionError), making(path):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with making(path):
        assert path.with_suffix(".lock").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.ENOLCK])
def test_a_folder_without_locks_is_one_warning(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, a folder that can only be read: the warning is that of `Entries.put`."""

    def fails(*args: object, **kwargs: object) -> int:
        raise OSError(code, os.strerror(code))

    entries = Entries(tmp_path)
    # Not by permissions: root, who may run this, can write anywhere.
    owner, name = (disk_locks.fcntl, "lockf") if code == errno.ENOLCK else (os, "open")
    monkeypatch.setattr(owner, name, fails)
    monkeypatch.setattr("tempfile.mkstemp", fails)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for key in "ab":
            with entries.making([key]):
                assert entries.get(key) is None
                entries.put(key, "a text", "")
    assert [w.category for w in said] == [TjWarning]
    assert os.strerror(code) in str(said[0].message)
    assert not list(tmp_path.iterdir())
