"""Results of probes: run once per installation, kept, and reported without importing PyTorch."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import hookimpl
from tj_torch import installation
from tj_torch.capture import lost_features as lost
from tj_torch.capture import probing
from tj_torch.capture.dynamo.features import FEATURES, TABLE
from tj_torch.torch_private.lookup import MissingNameError, Name, find, names_in
from tj_torch.torch_private.tables import Feature, Table, registered

TORCH = TABLE.probed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Process without results of probes; lists runs of the probes, which find two lost features."""
    ran: list[int] = []

    def in_a_process(tables: list[Table]) -> dict[str, dict[str, str]]:
        ran.append(1)
        return {
            t.owner: {"exceptions": "it has no effect: planted", "order of keys": "planted"}
            for t in tables
            if t is TABLE
        }

    monkeypatch.setattr(probing, "_in_a_process", in_a_process)
    monkeypatch.setattr(TABLE, "settled", False)
    monkeypatch.setattr(lost, "_said", set())
    yield ran
    TABLE.lost.clear()


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Untested version of PyTorch."""
    monkeypatch.setattr(installation, "TESTED", ("1.0",))


def test_a_tested_version_is_not_probed(
    unsettled: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installation, "TESTED", (torch.__version__.rpartition(".")[0],))
    probing.settle([TABLE], False, str(tmp_path))
    assert unsettled == []
    assert TABLE.lost == {}


@pytest.mark.usefixtures("unknown")
def test_an_unknown_version_is_probed_once_for_an_installation(
    unsettled: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    probing.settle([TABLE], False, str(tmp_path))
    assert unsettled == [1]
    assert "exceptions" in TABLE.lost
    TABLE.settled = False
    TABLE.lost.clear()
    probing.settle([TABLE], False, str(tmp_path))  # another process
    assert unsettled == [1]
    assert "exceptions" in TABLE.lost
    TABLE.settled = False
    probing.settle([TABLE], True, str(tmp_path))  # asked to
    assert unsettled == [1, 1]
    probing.settle([TABLE], True, str(tmp_path))  # once in a process
    assert unsettled == [1, 1]
    assert "has lost: exceptions, order of keys" in (TORCH.lacking(str(tmp_path)) or "")


def test_a_setting_probes_a_tested_version_at_the_first_compile(
    unsettled: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TJ_TORCH_PROBE", "1")
    session = tj.Session(["torch"], overrides={"cache_dir": str(tmp_path)})
    assert unsettled == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is planted as lost is said by a warning
        for f in (torch.sin, torch.cos):
            tj.jit(lambda x, f=f: f(x), session=session)(torch.ones(2))
    assert unsettled == [1]
    assert TORCH.kept(str(tmp_path)) == TABLE.lost


@pytest.mark.usefixtures("unknown", "unsettled")
def test_the_first_compile_says_that_a_version_is_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    monkeypatch.setattr(probing._LOG, "handle", lambda record: said.append(record.getMessage()))
    monkeypatch.setattr(probing._LOG, "level", logging.INFO)
    monkeypatch.setattr(probing._LOG, "_cache", {})
    session = tj.Session(["torch"], overrides={"cache_dir": str(tmp_path)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is planted as lost is said by a warning
        for f in (torch.sin, torch.cos):
            tj.jit(lambda x, f=f: f(x), session=session)(torch.ones(2))
    tested = ", ".join(probing.TESTED)
    assert said == [f"PyTorch {metadata.version('torch')}; tj was tested with {tested}"]


@pytest.mark.usefixtures("unknown")
def test_the_list_of_plugins_says_what_probes_have_found(tmp_path: Path) -> None:
    """In a process that does not import PyTorch."""
    (tmp_path / "pyproject.toml").write_text(f'[tool.tj]\ncache_dir = "{tmp_path}"\n')
    program = (
        "import sys; from tj_torch import installation; installation.TESTED = ('1.0',); "
        "from tj_core.cli.main import main; main(['plugins', '--json']); "
        "assert 'torch' not in sys.modules"
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TJ_")}
    TORCH.keep(str(tmp_path), {"exceptions": "planted"})
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environ
    )
    assert done.returncode == 0, done.stderr
    states = {s["name"]: s for s in json.loads(done.stdout)}
    assert "has lost: exceptions" in str(states["torch"])


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize("text", ["", "[]", '{"exceptions": 1}', "{"])
def test_a_kept_answer_that_is_none_is_found_again(
    text: str, unsettled: list[int], tmp_path: Path
) -> None:
    probing.settle([TABLE], False, str(tmp_path))
    (file,) = (tmp_path / "torch-probes").iterdir()
    file.write_text(text)
    assert TORCH.kept(str(tmp_path)) is None


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


@pytest.mark.slow
@pytest.mark.usefixtures("unknown")
def test_the_probes_run_in_a_process_of_their_own() -> None:
    assert probing._in_a_process([TABLE]) == {"tj-torch": {}}


@pytest.mark.usefixtures("unknown")
def test_probes_that_do_not_answer_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.warns(tj.TjWarning, match="probes of it do not answer"):
        assert probing._in_a_process([TABLE]) == {}


def test_no_folder_keeps_nothing(tmp_path: Path) -> None:
    TORCH.keep("none", {"a": "b"})
    assert TORCH.kept("none") is None
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o777)
    open_to_all.chmod(0o777)
    TORCH.keep(str(open_to_all), {"a": "b"})
    assert TORCH.kept(str(open_to_all)) is None


def test_what_is_said_of_an_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = str(tmp_path)
    monkeypatch.setattr(metadata, "version", lambda name: "9.1.0")
    assert "9.1.0 is probed at the first compile, or by tj doctor" in (TORCH.lacking(folder) or "")
    TORCH.keep(folder, {})
    assert "9.1.0 passes all probes" in (TORCH.lacking(folder) or "")
    monkeypatch.setattr(metadata, "version", lambda name: "2.13.7")
    assert TORCH.lacking(folder) is None


def test_help_imports_no_pytorch() -> None:
    program = (
        "import sys; from tj_core.cli.main import main; main([]); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "new-plugin" in done.stdout


def test_the_list_of_plugins_imports_no_pytorch() -> None:
    program = (
        "import sys; from tj_core.cli.main import main; main(['plugins', '--json']); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    states = {s["name"]: s for s in json.loads(done.stdout)}
    assert states["torch"]["state"] == "loaded"


@pytest.mark.slow
def test_doctor_lists_features(capsys: pytest.CaptureFixture[str]) -> None:
    from tj_core.cli.main import main

    assert main(["doctor", "--all"]) == 0
    shown = capsys.readouterr().out
    assert f"all {len(FEATURES)} features that rest on private names work" in shown
    assert "str(KeyError('x')) has" in shown


@pytest.mark.slow
def test_doctor_finds_a_missing_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command lists the features that lack the name."""
    from tj_core.cli.main import main
    from torch._dynamo.side_effects import SideEffects

    monkeypatch.delattr(SideEffects, "track_new_user_defined_object")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "exceptions is lost: no torch._dynamo.side_effects.SideEffects" in shown
    # What is lost of `ends of objects` concerns all programs, those of other probes, too.
    assert "ends of objects is lost: no torch._dynamo.side_effects.SideEffects" in shown
    assert "members of classes is lost: no" not in shown


@pytest.mark.slow
def test_doctor_lists_names(capsys: pytest.CaptureFixture[str]) -> None:
    from tj_core.cli.main import main

    assert main(["doctor", "--names"]) == 0
    shown = capsys.readouterr().out
    assert "torch._dynamo.variables.exception.ExceptionVariable" in shown
    assert "torch._dynamo.side_effects.SideEffects.track_new_user_defined_object" in shown
    for name in TABLE.names.values():
        assert f"\n{name.path}\n" in shown
        assert f"used to {name.use}" in shown


OTHER = Table(
    "tj-other",
    f"{__name__}:OTHER",
    "tj_torch.torch_private",
    names_in(
        {
            "torch": {"_no_such": ("do something", "a name")},
            "torch._C": {"_get_tracing_state": ("look", "works")},
        },
        {"_no_such": (("9.0", "torch._no_such_either"),)},
    ),
    (
        Feature("a name", "it is there", "all is lost"),
        Feature("works", "it works", "nothing works", probe=lambda: None),
        Feature("idle", "it has an effect", "it has none", probe=lambda: fail("no effect")),
    ),
)
"""A table as a plugin of a third party has it."""


def fail(message: str) -> None:
    raise AssertionError(message)


@pytest.fixture
def other() -> Iterator[Any]:
    """A session with that plugin, of whose table nothing is known."""

    class Plugin:
        TJ_PLUGIN_API = 1
        tj_name = "other"

        @staticmethod
        @hookimpl
        def tj_rule_tables() -> Any:
            return (registered(OTHER),)

    OTHER.lost, OTHER.settled, OTHER.looked = {}, False, False
    yield tj.Session(["torch", Plugin()], overrides={"strict": False})
    OTHER.lost, OTHER.settled, OTHER.looked = {}, False, False


@pytest.mark.usefixtures("unknown")
def test_a_plugin_of_others_is_probed_and_its_losses_are_said(
    other: Any, unsettled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = OTHER.probe()
    OTHER.settled = False
    monkeypatch.setattr(
        probing, "_in_a_process", lambda tables: {"tj-other": found, "tj-torch": {}}
    )
    jitted = tj.jit(lambda x: x + 1, session=other)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 2.0))
    said = [str(w.message) for w in caught if "tj-other" in str(w.message)]
    assert len(said) == 2
    assert all(str(torch.__version__) in s for s in said)
    assert any("a name: no torch._no_such; all is lost" in s for s in said)
    assert any("idle: it has no effect: no effect; it has none" in s for s in said)
    assert all("Please tell the issue tracker of tj-other" in s for s in said)
    assert OTHER.lost.keys() == {"a name", "idle"}


@pytest.mark.slow
def test_doctor_lists_plugins_of_others(other: Any) -> None:
    from tj_torch.doctor import findings

    found = list(findings(other, every=False, names=True))
    shown = "\n".join(f"{finding.topic}: {finding.text}" for finding in found)
    assert any(finding.state == "bad" and "pip install" in finding.remedy for finding in found)
    assert "idle" in shown
    assert "tj-other" in shown
    assert "9.0" in shown
    assert "tj-torch: all" in shown


def test_a_name_of_no_feature_is_an_error() -> None:
    with pytest.raises(ValueError, match="tj-other has no feature 'b'"):
        Table("tj-other", "", "", names_in({"torch": {"a": ("use", "b")}}), ())


def test_a_name_that_moved_is_found() -> None:
    moved = Name("torch._no_such", "", (), (("2.99", "torch._gone"), ("3.0", "torch.nn")))
    assert moved.find() is torch.nn


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
