"""Availability of nvFuser: a state with a reason, which is found without raising."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_nvfuser import availability, bindings, plugin
from tj_nvfuser.availability import State, release, state
from tj_nvfuser.bindings import NvFuser, shortened

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with a device and nvFuser 0.2.36, or as the arguments say."""

    def make(
        version: str = "0.2.36.dev1", device: bool = True, error: Exception | None = None
    ) -> None:
        def imported(name: str) -> object:
            if error is not None:
                raise error
            return object()

        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(availability, "distribution_version", lambda: version)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: device)
        monkeypatch.setattr(importlib, "import_module", imported)

    return make


def test_with_everything_there_it_is_usable(machine: Any) -> None:
    machine()
    assert state() == State(True, True, torch.__version__, "0.2.36.dev1")
    assert plugin.tj_available() is None


@pytest.mark.parametrize(
    ("how", "importable", "said"),
    [
        ({"version": "0.2.28"}, None, "0.2.28 is older than 0.2.35"),
        ({"device": False}, None, "no CUDA device"),
        (
            {"error": ImportError("undefined symbol: _ZN3c10\nmore")},
            False,
            "undefined symbol: _ZN3c10",
        ),
        ({"error": OSError("libnvrtc.so: not found")}, False, "libnvrtc.so: not found"),
    ],
)
def test_what_is_missing_is_said(machine: Any, how: Any, importable: Any, said: str) -> None:
    machine(**how)
    found = state()
    assert not found.usable
    assert found.importable is importable
    assert found.reason is not None
    assert said in found.reason
    assert "\n" not in found.reason
    assert plugin.tj_available() == found.reason


def test_what_is_not_installed_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = "torch is not installed (pip install torch)"
    assert state() == State(importable=False, reason=reason)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch" or None)
    assert "(pip install 'tj-nvfuser[cu128-torch210]'" in (state().reason or "")


@pytest.mark.parametrize(
    ("text", "numbers"), [("0.2.36.dev20260301", (0, 2, 36)), ("1.0", (1, 0)), ("x", ())]
)
def test_releases(text: str, numbers: tuple[int, ...]) -> None:
    assert release(text) == numbers


unusable = pytest.mark.skipif(state().usable, reason="nvFuser can run here")


@pytest.mark.slow
@unusable
def test_the_command_lists_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TJ_PLUGINS")
    done = subprocess.run(
        [sys.executable, "-m", "tj_core", "plugins", "--all", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    (found,) = (p for p in json.loads(done.stdout) if p["name"] == "nvfuser")
    assert (found["state"], found["reason"]) == ("unavailable", state().reason)


@unusable
def test_programs_run_and_train_without_it() -> None:
    linear = torch.nn.Linear(4, 3)
    jitted = tj.jit(lambda x: linear(x).relu().sum(), session=tj.Session())
    jitted(torch.randn(2, 4)).backward()
    assert linear.weight.grad is not None
    assert "nvfuser" not in str(tj.explain(jitted))


def test_the_plugin_imports_neither_torch_nor_nvfuser() -> None:
    code = "import sys, tj_nvfuser.plugin\nprint({'torch', 'nvfuser_direct'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# ------------------------------------------------------------------------- the bindings


class Fusion:
    """A ``FusionDefinition`` that records its calls."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def __enter__(self) -> Fusion:
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            print("Exception occurred")

    def define_tensor(self, **how: Any) -> str:
        if how["shape"] == [0]:
            raise RuntimeError("no elements Exception raised from C++ at 0x1")
        return "T0"

    def add_output(self, value: Any) -> None:
        self.said.append(value)

    def execute(self, inputs: list[Any]) -> list[Any]:
        if not inputs:
            raise RuntimeError("nothing goes in\nException raised from C++")
        return [self.said, inputs]


class Module:
    FusionDefinition = Fusion

    class DataType:
        Float = "Float"


TEXT = """def nvfuser_fusion(fd: FusionDefinition) -> None:
    T0 = fd.define_tensor(shape=[{}], dtype=DataType.Float)
    fd.add_output(T0)
"""


def test_a_definition_is_made_and_run(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(bindings, "bindings", lambda: Module)
    run = NvFuser().build(TEXT.format(3))
    assert run([1]) == [["T0"], [1]]
    with pytest.raises(RuntimeError, match=r"^nothing goes in$"):
        run([])
    with pytest.raises(RuntimeError, match=r"^no elements$"):
        NvFuser().build(TEXT.format(0))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#define CUDA_VERSION 12080\n", None),
        ("#define CUDA_VERSION 13000\n", "is for CUDA 12.8, and would read headers of 13.0"),
        ("/* nothing */", "does not have"),
        (None, "does not have"),
    ],
)
def test_scans_need_headers_of_nvfusers_cuda(
    text: str | None, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "cuda.h").write_text("#define CUDA_H\n" + text)
    monkeypatch.setattr(bindings, "HEADERS", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    reason = NvFuser().no_scans()
    assert reason is None if said is None else reason is not None and said in reason


def test_processes_of_one_program_do_not_meet_through_nvfuser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NVFUSER_DISABLE", raising=False)
    monkeypatch.setattr(importlib, "import_module", lambda name: Module)
    for name in bindings.PROCESSES:
        monkeypatch.delenv(name, raising=False)
    assert bindings.bindings() is Module
    assert "NVFUSER_DISABLE" not in bindings.os.environ
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("NVFUSER_DISABLE", "")  # so that what is set is taken back
    monkeypatch.delenv("NVFUSER_DISABLE")
    bindings.bindings()
    assert bindings.os.environ["NVFUSER_DISABLE"] == "multidevice"


def test_errors_without_text_stay() -> None:
    error = RuntimeError("Exception raised from C++")
    assert shortened(error) is error
