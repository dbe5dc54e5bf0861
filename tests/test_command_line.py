"""The command line with the plugins of this tree, and on the README's own example."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import tj_core as tj
import torch
from tj_conformance.suites import SUITES
from tj_core.cli import main as cli
from tj_core.extend import PluginError
from tj_core.host import session
from tj_inductor import doctor
from tj_torch import installation

ROOT = Path(__file__).parents[1]
EXAMPLE = re.search(r"```python\n(# example\.py\n.*?)```", (ROOT / "README.md").read_text(), re.S)

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The example in the working directory; ``sys.path`` and ``sys.modules`` are restored."""
    assert EXAMPLE is not None
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "example", raising=False)
    monkeypatch.chdir(tmp_path)
    body = EXAMPLE[1].partition("\n\n\nf(")[0]
    Path("example.py").write_text(EXAMPLE[1], "utf-8")
    Path("unrun.py").write_text(f"{body}\n", "utf-8")
    plain = body.replace("@tj.jit\n", "").replace(
        "x, weight", "x: 'f32[4, 8]', weight: 'f32[8, 3]'"
    )
    Path("annotated.py").write_text(f"{plain}\n", "utf-8")


@pytest.mark.parametrize(
    "argv",
    [
        ("example.py:f",),
        ("unrun.py:f", "--inputs", "torch.rand(4, 8), torch.rand(8, 3)"),
        ("annotated.py:f",),
    ],
)
def test_the_readmes_example(capsys: Capture, argv: tuple[str, ...]) -> None:
    assert cli.main(["trace", *argv]) == 0
    out = capsys.readouterr().out
    assert '# weight: "cpu f32[8, 3]"' in out
    assert cli.main(["explain", *argv, "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)["claims"]
    assert claims[0]["operation"] == "torch.matmul"


def test_every_command_prints_json(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delenv("TJ_PLUGINS", raising=False)
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = capsys.readouterr().out.partition("COMMAND\n")[2]
    commands = re.findall(r"^    ([a-z][\w-]*) ", listed, re.M)
    assert {"plugins", "demo", "new-plugin", "report", "conformance"} <= {*commands}
    for name in commands:
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        assert name == "conformance" or "--json" in capsys.readouterr().out, name
    for name, (module, _) in SUITES.items():
        main = importlib.import_module(f"tj_conformance.{module}").main
        with pytest.raises(SystemExit):
            main(["--help"])
        assert "--json" in capsys.readouterr().out, name


INT8 = """
import torch

layer = torch.nn.Linear(64, 32)


@torch.no_grad()
def f(x):
    return {"y": layer(x)}
"""


def test_results_are_compared_with_those_of_the_function_as_it_was_written(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    Path("int8.py").write_text(INT8, "utf-8")
    monkeypatch.setattr(session, "_current", None)
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    monkeypatch.setenv("TJ_ONEDNN_INT8", "*")
    argv = ["--plugins", "onednn,torch", "compare", "int8.py:f", "--inputs", "torch.rand(4, 64)"]
    assert cli.main([*argv, "--json", "--layers"]) == 0
    data = json.loads(capsys.readouterr().out)
    (found,), (layer,) = data["outputs"], data["layers"]
    assert (found["output"], layer["layer"], data["first"]) == ("y", "layer", "layer")
    assert 1e-5 < found["relative"] == layer["relative"] < 0.02
    assert cli.main(argv) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("output  largest error")
    assert cli.main(["compare", "example.py:f"]) == 2
    assert "example.py:f has run already" in capsys.readouterr().err


def test_without_inputs_a_sentence_says_what_to_do(capsys: Capture) -> None:
    assert cli.main(["explain", "unrun.py:f"]) == 2
    assert "takes x and weight, and nothing says with what to run it" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch has to be asked for the device")
def test_help_and_lists_import_no_torch() -> None:
    """With all plugins; a second of CPU time that each command would take."""
    code = """
        import sys
        from tj_core.cli.main import main
        for argv in (["--help"], ["plugins"], ["config"], ["config", "--schema"]):
            try:
                main(argv)
            except SystemExit:
                pass
            assert "torch" not in sys.modules, argv
        """
    env = {name: value for name, value in os.environ.items() if not name.startswith("TJ_")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout, "commands of plugins are in the help"
    assert "onednn" in done.stdout


def test_what_is_known_without_torch_is_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    onednn, no_device = installation.is_built_with_onednn(), installation.has_no_cuda_device()
    monkeypatch.undo()
    assert onednn is torch.backends.mkldnn.is_available()
    assert not (no_device and torch.cuda.is_available())
    assert not installation.has_no_cuda_device(), "where it is imported it is asked"


def test_without_tj_torch_nobody_else_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TJ_PLUGINS", raising=False)
    monkeypatch.setenv("TJ_DISABLE", "torch,nvfuser")
    with pytest.raises(PluginError) as caught:
        tj.jit(lambda x: x, session=tj.Session())
    assert caught.value.message == (
        "nothing can be captured, since no plugin with a frontend is loaded: "
        "'nvfuser', 'torch' disabled by env TJ_DISABLE"
    )


def test_the_compiler_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = doctor.findings()
    assert found.state == "good"
    assert found.text.startswith(shutil.which(doctor.cpp_compiler() or "") or "?")
    monkeypatch.setattr(doctor, "cpp_compiler", lambda: "no-such-compiler")
    (found,) = doctor.findings()
    assert found.state == "bad"
    assert "no-such-compiler" in found.text
    assert "apt install g++" in found.remedy
    monkeypatch.setattr(doctor, "cpp_compiler", lambda: "false")
    assert "does not run" in doctor.findings()[0].text
