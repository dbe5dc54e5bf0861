"""Measured times on disk."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import warnings
from typing import TYPE_CHECKING

import pytest
from tj_core.extend import TjWarning
from tj_onednn.store import Machine, Store, processor
from tj_onednn.timing import Times

if TYPE_CHECKING:
    from pathlib import Path

HERE = Machine("2.13.0", "a processor", 2)


def test_what_was_measured_is_there_for_the_next_session(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    Store(folder, HERE).put("a", Times(0.002, 0.001))
    again = Store(folder, HERE)
    assert again.get("a") == Times(0.002, 0.001)
    assert again.get("b") is None
    assert [p.name for p in folder.iterdir()] == [HERE.file], "nothing else is left"


@pytest.mark.parametrize(
    "other",
    [
        Machine("2.14.0", "a processor", 2),
        Machine("2.13.0", "another", 2),
        Machine("2.13.0", "a processor", 1),
    ],
)
def test_times_of_others_do_not_count(other: Machine, tmp_path: Path) -> None:
    Store(tmp_path, other).put("a", Times(0.002, 0.001))
    assert Store(tmp_path, HERE).get("a") is None
    assert Store(tmp_path, other).get("a") is not None


@pytest.mark.skipif(sys.platform == "win32", reason="folders of users are their own")
@pytest.mark.parametrize(
    ("place", "said"),  # of folders it is said in the words of `check_own`, as everywhere
    [
        ("folder", "can be written to by others than this user"),
        ("file", "others than this user can write to"),
    ],
    ids=["folder", "file"],
)
def test_what_others_can_write_is_not_used(place: str, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "times"
    Store(folder, HERE).put("a", Times(0.002, 0.001))
    (folder if place == "folder" else folder / HERE.file).chmod(0o777)
    with pytest.warns(TjWarning, match=said):
        assert Store(folder, HERE).get("a") is None


def test_unstable_times_hold_for_the_session_only(tmp_path: Path) -> None:
    store = Store(tmp_path, HERE)
    store.put("a", Times(0.002, 0.001, stable=False))
    assert store.get("a") is not None
    store.put("b", Times(0.002, 0.001))
    assert Store(tmp_path, HERE).get("a") is None


def document(**changes: object) -> str:
    machine = {"torch": HERE.torch, "processor": HERE.processor, "threads": HERE.threads}
    whole = {"form": 1, "machine": machine, "seconds": {"a": [0.002, 0.001]}}
    return json.dumps(whole | changes)


BROKEN = {
    "no JSON": "{",
    "bytes": "\x00\x01",
    "another form": document(form=0),
    "another machine": document(machine={}),
    "a list": "[]",
    "no times": json.dumps({"form": 1}),
    "one number": document(seconds={"a": [0.002]}),
    "a text": document(seconds={"a": ["0.002", 0.001]}),
    "no time": document(seconds={"a": [0.0, 0.001]}),
    "not a number": document(seconds={"a": [float("nan"), 0.001]}),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_used_is_ignored_with_one_warning(kind: str, tmp_path: Path) -> None:
    path = tmp_path / HERE.file
    path.write_text(document(), "utf-8")
    assert Store(tmp_path, HERE).get("a") == Times(0.002, 0.001), "a good one is used"
    path.write_text(BROKEN[kind], "utf-8")
    store = Store(tmp_path, HERE)
    with pytest.warns(TjWarning, match="cannot be used, and are measured again") as found:
        assert store.get("a") is None
        store.put("b", Times(0.002, 0.001))
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store(tmp_path, HERE).get("b") is not None, "it was replaced"


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file", HERE)
    with pytest.warns(TjWarning) as found:
        store.put("a", Times(0.002, 0.001))
        store.put("b", Times(0.002, 0.001))
    assert len(found) == 1
    assert store.get("a")
    assert store.get("b")


def test_no_folder_keeps_nothing(tmp_path: Path) -> None:
    store = Store(None, HERE)
    store.put("a", Times(0.002, 0.001))
    assert store.get("a")
    assert list(tmp_path.iterdir()) == []


def test_what_another_wrote_meanwhile_stays(tmp_path: Path) -> None:
    first, second = Store(tmp_path, HERE), Store(tmp_path, HERE)
    assert first.get("a") is None
    assert second.get("b") is None
    first.put("a", Times(0.002, 0.001))
    second.put("b", Times(0.004, 0.003))
    assert Store(tmp_path, HERE).get("a")
    assert Store(tmp_path, HERE).get("b")


WRITER = """
import sys
from pathlib import Path
from tj_onednn.store import Machine, Store
from tj_onednn.timing import Times
store = Store(Path(sys.argv[1]), Machine("2.13.0", "a processor", 2))
for i in range(60):
    store.put(f"{sys.argv[2]} {i}", Times(0.002, 0.001))
"""


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    """Two processes write all the time; a warning of a reader would be an error."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "ab"
    ]
    while any(w.poll() is None for w in writers):
        Store(tmp_path, HERE).get("x")
    assert [w.wait() for w in writers] == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == [HERE.file]
    Store(tmp_path, HERE).put("last", Times(0.002, 0.001))
    known = Store(tmp_path, HERE).read()
    assert {"a 59", "b 59"} & set(known)
    assert "last" in known


def test_the_processor_has_a_name() -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(processor()))
    thread.start()
    thread.join()
    assert found == [processor()]
    assert len(processor()) > len("x86_64 ")
