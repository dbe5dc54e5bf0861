"""The progress bar: after a while, on a terminal, unless it is switched off."""

from __future__ import annotations

import io
import time

import pytest
import tj_core as tj
from rich.console import Console
from tj_core.compile.progress import Progress
from tj_core.testing.numeric import NumericPlugin


@pytest.fixture
def console():
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def wait_for(condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_long_compilation_shows_name_and_pass(console):
    progress = Progress(True, 0.0, console)
    with progress.showing("model[0]", 5):
        progress.step("claim")
        wait_for(lambda: "claim" in console.file.getvalue())
        progress.step("fuse")
        wait_for(lambda: "fuse" in console.file.getvalue())
    assert "tj: compiling model[0]" in console.file.getvalue()


def test_a_short_one_shows_nothing(console):
    progress = Progress(True, 60.0, console)
    with progress.showing("f", 5):
        progress.step("claim")
    assert console.file.getvalue() == ""


def test_the_time_counts_from_the_beginning(console):
    progress = Progress(True, 1.0, console)
    with progress.showing("f", 5):
        wait_for(console.file.getvalue)
        (task,) = progress._bar.tasks
        assert task.elapsed >= 1.0


def test_it_can_be_switched_off(console):
    with Progress(False, 0.0, console).showing("f", 5):
        time.sleep(0.05)
    assert console.file.getvalue() == ""


def test_one_inside_of_another_has_no_bar_of_its_own(console):
    progress = Progress(True, 0.0, console)
    with progress.showing("outer", 5):
        with progress.showing("inner", 5):
            wait_for(console.file.getvalue)
        progress.step("claim")
        wait_for(lambda: "claim" in console.file.getvalue())
    assert "inner" not in console.file.getvalue()


def test_passes_are_steps(console):
    session = tj.Session(plugins=[NumericPlugin()])
    found = []
    session.progress.step = found.append
    tj.jit(lambda x: x + x, session=session)([1.0])
    assert list(dict.fromkeys(found)) == ["dce", "cse", "claim", "codegen"]


def test_without_a_terminal_nothing_is_shown(capsys):
    with Progress(True, 0.0).showing("f", 5):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_the_option():
    assert tj.Session(plugins=[NumericPlugin()]).progress.wanted
    assert not tj.Session(plugins=[NumericPlugin()], overrides={"progress": False}).progress.wanted
