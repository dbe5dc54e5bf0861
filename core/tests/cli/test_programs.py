"""``tj trace`` and ``tj explain``: targets, and the inputs to run them with."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tj_core.cli import main as cli
from tj_core.cli.target import find_program
from tj_core.errors import TjError
from tj_core.host import session

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.testing.plugins import FakeDist

NUMERIC = "from tj_core.testing.numeric import NumericPlugin\nplugin = NumericPlugin()\n"

PROGRAM = """
from typing import Annotated

import tj_core as tj

def plain(x, y):
    return x * y

def two(x, *, y=1):
    return x + x

def annotated(x: "f64[3]", y: Annotated[list, "cpu f64[3]"]):
    return x + y

@tj.jit
def f(x, y):
    return x + y

@tj.jit
def late(x):
    return x + x

@tj.jit
def ran(x):
    return x * x

ran([1.0])

def runs():
    print("running")
    f([1.0, 2.0], [3.0, 4.0])

def makes():
    return plain

def returns():
    run = tj.jit(plain)
    run([1.0], [2.0])
    return run

def several():
    f([1.0], [2.0])
    late([1.0])

def none(): pass
def fails(): return 1 / 0
"""

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _project(
    own_project: None, fake_dist: FakeDist, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """A project with a program on vectors; ``sys.path`` and ``sys.modules`` are restored."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(session, "_current", None)
    fake_dist("numeric", NUMERIC, target="fake_numeric:plugin")
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    yield
    sys.modules.pop("program", None)


def run(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of ``tj argv``."""
    status = cli.main(argv)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("target", "operation"),
    [("runs", "num.add"), ("returns", "num.mul"), ("ran", "num.mul"), ("annotated", "num.add")],
)
def test_a_target_says_itself_with_what_it_runs(
    capsys: Capture, target: str, operation: str
) -> None:
    status, out, err = run(capsys, "trace", f"program.py:{target}")
    assert (status, err) == (0, "")
    assert operation in out


@pytest.mark.parametrize("target", ["f", "plain", "makes"])
def test_inputs_are_the_arguments_of_a_call(capsys: Capture, target: str) -> None:
    inputs = "[math.pi] * 3, y=[1.0, 2.0, 3.0]"
    if target == "f":
        inputs = inputs.replace("y=", "")  # a vector function takes no keywords
    found = find_program(f"program.py:{target}", inputs)
    assert found.inputs is not None
    assert len(found.inputs.args[0]) == 3
    status, out, _ = run(capsys, "explain", f"program.py:{target}", "--inputs", "[1.0], [2.0]")
    assert status == 0
    assert "python" in out  # the numeric plugin's executor


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("[1.0", "is no list of arguments"),
        ("[1.0]", "do not fit program.py:plain(x, y): missing a required argument: 'y'"),
        ("nowhere, 1", "NameError: name 'nowhere' is not defined"),
    ],
)
def test_wrong_inputs(capsys: Capture, inputs: str, words: str) -> None:
    status, _, err = run(capsys, "trace", "program.py:plain", "--inputs", inputs)
    assert status == 2
    assert words in err
    assert "Traceback" not in err


def test_without_inputs_one_message_says_what_to_do(capsys: Capture) -> None:
    for target, words in {"plain": "takes x and y", "two": "takes x,", "late": "takes x,"}.items():
        status, out, err = run(capsys, "trace", f"program.py:{target}")
        assert (status, out) == (2, "")
        assert words in err
        assert "--inputs" in err
        assert "Traceback" not in err


def test_a_stage(capsys: Capture) -> None:
    argv = ("trace", "--stage", "acquired", "program:runs", "--json")
    status, out, err = run(capsys, *argv)
    data = json.loads(out)
    assert (status, err) == (0, "running\n")
    assert data["stage"] == "ACQUIRED"
    assert data["trace"].startswith("from tj_core.testing.numeric import num")


def test_explain_as_data(capsys: Capture) -> None:
    _, out, _ = run(capsys, "explain", "program.py:runs", "--json")
    data = json.loads(out)
    assert data["target"] == "program.py:runs"
    (claim,) = data["claims"]
    assert set(claim) == {"call", "operation", "executor", "declined_by", "source"}
    assert claim["operation"] == "num.add"


def test_the_original_is_the_users_own() -> None:
    found = find_program("program.py:annotated")
    assert found.original is found.function
    jitted = found.run()
    assert jitted.__tj__.fn is found.original
    ran = find_program("program.py:ran")
    assert ran.inputs is None
    assert ran.original.__name__ == "ran"
    assert not hasattr(ran.original, "__tj__")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("program.py", "is no target"),
        ("nowhere.py:main", "there is no file"),
        ("fake_nowhere:main", "there is no module"),
        ("fake_nowhere.inner:main", "there is no module"),
        ("program.py:nnoe", "Did you mean 'none'?"),
        ("program.py:__name__", "'__name__' of program.py is no function, but of type str"),
        ("program.py:none", "returned nothing"),
        ("program.py:several", "runs several jitted functions: f, late"),
    ],
)
def test_wrong_targets(capsys: Capture, target: str, words: str) -> None:
    status, _, err = run(capsys, "trace", target)
    assert status == 2
    assert words in err


def test_what_the_program_raises_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        find_program("program.py:fails")


def test_global_options_reach_the_programs_sessions(capsys: Capture, tmp_path: Path) -> None:
    keys = "{k: os.environ.get('TJ_' + k) for k in ('PLUGINS', 'DISABLE', 'CONFIG')}"
    source = f"import os\ndef main(): raise ValueError(str({keys}))\n"
    (tmp_path / "program.py").write_text(source, "utf-8")
    before = dict(os.environ)
    with pytest.raises(ValueError, match=r"'a,b'.*'c,\.\.\.'.*'p'"):
        cli.main(["--plugins=a,b", "--disable=c", "--config=p", "explain", "program.py:main"])
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("annotation", "words"),
    [("f64[n]", "a size that is no number: n"), ("object list", "no dialect makes a value like x")],
)
def test_annotations_that_are_no_inputs(tmp_path: Path, annotation: str, words: str) -> None:
    (tmp_path / "program.py").write_text(f"def f(x: {annotation!r}): return x\n", "utf-8")
    with pytest.raises(TjError, match=words):
        find_program("program.py:f")
