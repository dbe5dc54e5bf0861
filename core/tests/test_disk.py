"""Entries on disk: by key, for the current user alone."""

import json
import os
import pwd
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tj_core.disk import Entries, cache_folder, own_folder, with_facts
from tj_core.errors import TjWarning

KEY = "all that it depends on\nand more"


def test_what_is_kept_is_there_for_the_next_process(tmp_path):
    folder = tmp_path / "new" / "folder"
    Entries(folder).put(KEY, "a text", "a title")
    again = Entries(folder)
    assert again.get(KEY) == "a text"
    assert again.get("another") is None
    assert list(again.titles()) == [(again.path(KEY), "a title")], "nothing else is left"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert again.path(KEY).stat().st_mode & 0o077 == 0


def document(**changes):
    return json.dumps({"form": 1, "title": "", "key": KEY, "value": "old"} | changes)


BROKEN = {
    "no JSON": "{",
    "empty": "",
    "bytes": "\x00\x01",
    "another form": document(form=0),
    "another key": document(key="one with the same hash"),
    "no text": document(value=3),
    "no value": json.dumps({"form": 1, "key": KEY}),
    "a list": "[]",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_an_entry_that_cannot_be_used_is_ignored_with_one_warning(kind, tmp_path):
    entries = Entries(tmp_path)
    entries.path(KEY).write_text(document(), "utf-8")
    assert Entries(tmp_path).get(KEY) == "old", "a good one is used"
    entries.path(KEY).write_text(BROKEN[kind], "utf-8")
    with pytest.warns(TjWarning, match="cannot be used, and is made again") as found:
        assert entries.get(KEY) is None
        assert entries.get(KEY) is None
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entries.put(KEY, "new", "")
        assert Entries(tmp_path).get(KEY) == "new", "it was replaced"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_not_used(mode, tmp_path):
    Entries(tmp_path / "open").put(KEY, "a text", "")
    (tmp_path / "open").chmod(mode)
    entries = Entries(tmp_path / "open")
    with pytest.warns(TjWarning, match=f"others than this user .mode {mode:o}") as found:
        assert entries.get(KEY) is None
        entries.put("other", "a text", "")
    assert len(found) == 1
    assert len(list((tmp_path / "open").iterdir())) == 1
    with pytest.raises(PermissionError):
        own_folder(tmp_path / "open")


def test_an_entry_that_others_can_write_to_is_not_used(tmp_path):
    entries = Entries(tmp_path)
    entries.put(KEY, "a text", "")
    entries.path(KEY).chmod(0o666)
    with pytest.warns(TjWarning, match="others than this user"):
        assert entries.get(KEY) is None


def test_what_belongs_to_somebody_else_is_not_used(tmp_path, monkeypatch):
    entries = Entries(tmp_path)
    entries.put(KEY, "a text", "")
    me, other = os.getuid(), 54321
    monkeypatch.setattr("os.getuid", lambda: other)
    name = re.escape(f"user {pwd.getpwuid(me).pw_name!r} ({me})")
    words = f"{re.escape(str(tmp_path))} belongs to {name}, and this is user {other}"
    with pytest.warns(TjWarning, match=words):
        assert entries.get(KEY) is None


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o755])
def test_nobody_can_put_another_folder_into_the_place_of_one(mode, tmp_path):
    top = tmp_path / "top"
    Entries(top / "regions").put(KEY, "a text", "")
    assert top.stat().st_mode & 0o777 == 0o700, "made for this user alone"
    top.chmod(mode)
    entries = Entries(top / "regions")
    if mode != 0o777:
        assert entries.get(KEY) == "a text"
        return
    words = re.escape(f"{top} can be written to by everybody (mode 777)")
    with pytest.warns(TjWarning, match=words) as found:
        assert entries.get(KEY) is None
        entries.put("other", "a text", "")
    assert len(found) == 1
    assert len(list((top / "regions").iterdir())) == 1


def test_a_folder_in_somebody_elses_is_not_used(tmp_path, monkeypatch):
    folder = tmp_path / "top" / "regions"
    Entries(folder).put(KEY, "a text", "")
    found = os.stat

    def stat(path, *args, **kwargs):
        result = found(path, *args, **kwargs)
        if path != folder.parent:
            return result
        return os.stat_result([54321 if i == 4 else value for i, value in enumerate(result)])

    monkeypatch.setattr("os.stat", stat)
    with pytest.warns(TjWarning, match="top belongs to user 54321, and this is"):
        assert Entries(folder).get(KEY) is None


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    entries = Entries(tmp_path / "file")
    with pytest.warns(TjWarning, match="cannot be written") as found:
        entries.put(KEY, "a text", "")
        entries.put(KEY, "a text", "")
    assert len(found) == 1


def test_what_nobody_has_used_for_longest_makes_room(tmp_path):
    entries = Entries(tmp_path, 3)
    for age, key in enumerate("cba"):
        entries.put(key, key, "")
        os.utime(entries.path(key), (1000 + age, 1000 + age))
    assert entries.get("c") == "c", "which makes it the newest"
    entries.put("d", "d", "")
    assert [entries.get(key) for key in "abcd"] == ["a", None, "c", "d"]


WRITER = """
import sys
from pathlib import Path
from tj_core.disk import Entries
for i in range(300):
    Entries(Path(sys.argv[1])).put("key", sys.argv[2] * 20000, "")
"""


def test_a_reader_never_sees_half_an_entry(tmp_path):
    """Two processes write all the time; any warning of a reader fails the test."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "ab"
    ]
    seen = set()
    while any(w.poll() is None for w in writers):
        seen.add(Entries(tmp_path).get("key"))
    assert [w.wait() for w in writers] == [0, 0]
    assert seen <= {None, "a" * 20000, "b" * 20000}
    assert len(seen) > 1
    assert len(list(tmp_path.iterdir())) == 1, "nothing else is left"


def test_the_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / "tj"
    assert cache_folder("~/other") == Path.home() / "other"
    assert cache_folder("none") is None
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder(None).is_relative_to(Path.home())

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder(None) is None


def test_files_that_another_process_removes_are_left_out(tmp_path: Path) -> None:
    here, gone = tmp_path / "a", tmp_path / "b"
    here.write_text("abc")
    assert [(p, facts.st_size) for p, facts in with_facts([gone, here])] == [(here, 3)]
