"""Results of probes: run once per installation, kept, and reported without importing PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_torch.capture.dynamo import features, probing
from tj_torch.torch_private import installation
from tj_torch.torch_private.lookup import MissingNameError, find


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Process without results of probes; lists runs of the probes, which find two lost features."""
    ran: list[int] = []

    def in_a_process() -> dict[str, str]:
        ran.append(1)
        return {"exceptions": "it has no effect: planted", "draws": "planted"}

    monkeypatch.setattr(probing, "_in_a_process", in_a_process)
    monkeypatch.setattr(probing._State, "settled", False)
    monkeypatch.setattr(features, "_said", set())
    yield ran
    features.LOST.clear()


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Untested version of PyTorch."""
    monkeypatch.setattr(installation, "TESTED", ("1.0",))


def test_a_tested_version_is_not_probed(
    unsettled: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installation, "TESTED", (torch.__version__.rpartition(".")[0],))
    probing.settle(False, str(tmp_path))
    assert unsettled == [] and features.LOST == {}


@pytest.mark.usefixtures("unknown")
def test_an_unknown_version_is_probed_once_for_an_installation(
    unsettled: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    probing.settle(False, str(tmp_path))
    assert unsettled == [1] and "exceptions" in features.LOST
    monkeypatch.setattr(probing._State, "settled", False)
    features.LOST.clear()
    probing.settle(False, str(tmp_path))  # another process
    assert unsettled == [1] and "exceptions" in features.LOST
    monkeypatch.setattr(probing._State, "settled", False)
    probing.settle(True, str(tmp_path))  # asked to
    assert unsettled == [1, 1]
    probing.settle(True, str(tmp_path))  # once in a process
    assert unsettled == [1, 1]
    assert "has lost: draws, exceptions" in (installation.lacking(str(tmp_path)) or "")


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize("text", ["", "[]", '{"exceptions": 1}', "{"])
def test_a_kept_answer_that_is_none_is_found_again(
    text: str, unsettled: list[int], tmp_path: Path
) -> None:
    probing.settle(False, str(tmp_path))
    (file,) = (tmp_path / "torch-probes").iterdir()
    file.write_text(text)
    assert installation.kept(str(tmp_path)) is None


def test_the_first_compile_settles(
    unsettled: list[int], unknown: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    overrides: dict[str, Any] = {"cache_dir": str(tmp_path), "strict": False}
    session = tj.Session(["torch"], overrides=overrides)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        try:
            raise KeyError("q")
        except KeyError as error:
            return x + 1, str(error)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert tj.jit(f, session=session)(torch.ones(2))[1] == "'q'"
    said = [str(w.message) for w in caught]
    assert len([s for s in said if "exceptions: it has no effect: planted; functions" in s]) == 1
    assert unsettled == [1]


@pytest.mark.usefixtures("unknown")
def test_the_probes_run_in_a_process_of_their_own() -> None:
    assert probing._in_a_process() == {}


@pytest.mark.usefixtures("unknown")
def test_probes_that_do_not_answer_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.warns(tj.TjWarning, match="probes of it do not answer"):
        assert probing._in_a_process() is None


def test_no_folder_keeps_nothing(tmp_path: Path) -> None:
    installation.keep("none", {"a": "b"})
    assert installation.kept("none") is None
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    installation.keep(str(open_to_all), {"a": "b"})
    assert installation.kept(str(open_to_all)) is None


def test_what_is_said_of_an_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = str(tmp_path)
    monkeypatch.setattr(metadata, "version", lambda name: "9.1.0")
    assert "9.1.0 is probed at the first compile, or by tj doctor" in (
        installation.lacking(folder) or ""
    )
    installation.keep(folder, {})
    assert "9.1.0 passes all probes" in (installation.lacking(folder) or "")
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.7")
    assert installation.lacking(folder) is None


def test_the_list_of_plugins_imports_no_pytorch() -> None:
    program = (
        "import sys; from tj_core.cli.main import main; main(['plugins', '--json']); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    states = {s["name"]: s for s in json.loads(done.stdout)}
    assert states["torch"]["state"] == "loaded"


def test_doctor_lists_features(capsys: pytest.CaptureFixture[str]) -> None:
    from tj_core.cli.main import main

    assert main(["doctor", "--all"]) == 0
    shown = capsys.readouterr().out
    assert f"all {len(features.FEATURES)} features that rest on private names work" in shown
    assert "str(KeyError('x')) has" in shown


def test_doctor_finds_a_missing_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The probe's program is right: functions that need the feature run uncompiled."""
    from tj_core.cli.main import main
    from torch._dynamo.side_effects import SideEffects

    monkeypatch.delattr(SideEffects, "track_new_user_defined_object")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "exceptions" in shown and "lost: no" in shown and "members of classes" not in shown


@pytest.mark.parametrize(
    "path", ["torch._no_such", "torch._dynamo.no_such.Thing", "no_such_package.Thing"]
)
def test_a_missing_name_says_which(path: str) -> None:
    with pytest.raises(MissingNameError, match="does not know PyTorch") as caught:
        find(path)
    assert caught.value.path == path


def test_a_name_is_found() -> None:
    assert find("torch._dynamo.exc.Unsupported").__name__ == "Unsupported"
    assert find("torch.nn") is torch.nn
