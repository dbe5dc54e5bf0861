"""The command: terminal, JSON, HTML, exit code; and the kit under pytest."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tj_conformance.executor.command import main
from tj_conformance.executor.faults import Planted
from tj_conformance.executor.subject import subject
from tj_core.extend import Claim, Decline, Executor, RuleTable, TjError, hookimpl


def run(arguments: list[str], plugin: Any) -> int:
    return main(arguments, functools.partial(subject, plugins=[plugin, "torch", "autograd"]))


class Picky:
    """Takes `tanh` of int64, and declines all else; its second claim has no sample."""

    tj_name = "picky"

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        import torch

        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("torch.tanh", Claim(torch.tanh, _int64))
        claims.set("torch.ops.acme.never", Claim(torch.tanh))
        return (Executor("picky", claims),)


def _int64(call: Any) -> bool | Decline:
    name = call.flat_args[0].dtype.name
    return True if name == "int64" else Decline(f"{name} is not implemented")


def test_a_report_in_each_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("a.json", "a.html")]
    arguments = ["planted", "--op", "tanh", "--dtype", "float32", "--fast", "--first"]
    wrong = Planted("claim", "value")
    assert run([*arguments, "--json", files[0], "--html", files[1]], wrong) == 1
    out = capsys.readouterr().out
    assert "│ tanh      │ 1/1! │" in out
    assert "tanh, float32, sample 0, as given (calls)" in out
    assert "1 finding" in out
    report = json.loads(Path(files[0]).read_text("utf-8"))
    (cell,) = report["cells"]
    assert (cell["taken"], cell["samples"]) == (1, 1)
    (found,) = cell["findings"]
    assert found["probe"] == "calls"
    assert "import tj_core as tj" in found["program"]
    page = Path(files[1]).read_text("utf-8")
    assert "<td class='wrong'>1/1!</td>" in page
    assert "executor &#x27;planted&#x27;" in page


def test_json_without_a_file_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["picky", "--op", "tanh", "--dtype", "int64", "--fast", "--json"]
    assert run(arguments, Picky()) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["cells"][0]["taken"] == 1
    assert "0 findings" in err


def test_tensors_are_on_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    class Asked:
        tj_name = "asked"

        @hookimpl
        def tj_executors(self) -> tuple[Executor, ...]:
            import torch

            claims: RuleTable[Claim] = RuleTable("claim")
            claims.set("torch.tanh", Claim(torch.tanh, self.note))
            return (Executor("asked", claims),)

        def note(self, call: Any) -> Decline:
            asked.append(call.flat_args[0].device.type)
            return Decline("it is not implemented")

    arguments = ["asked", "--op", "tanh", "--dtype", "float32", "--fast"]
    assert run([*arguments, "--device", "meta"], Asked()) == 0
    assert set(asked) == {"meta"}
    assert run(arguments, Asked()) == 0
    assert set(asked) == {"meta", "cpu"}


def test_a_part_and_no_time_for_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["picky", "--op", "tanh", "--op", "sin", "--op", "cos", "--fast", "--seconds", "0"]
    files = ["--html", str(tmp_path / "a.html"), "--json"]
    assert run([*arguments, "--part", "1/3", *files], Picky()) == 0
    out, err = capsys.readouterr()
    (left,) = json.loads(out)["operations_left"]
    assert f"no time for 1 operations: {left}\n" in err
    assert f"<li>{left}</li>" in (tmp_path / "a.html").read_text("utf-8")
    assert json.loads(out)["cells"] == []
    with pytest.raises(SystemExit):
        run([*arguments, "--part", "3/3"], Picky())
    assert "a part is K/N" in capsys.readouterr().err


def test_declines_and_claims_without_samples(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["picky", "--op", "tanh", "--dtype", "int64", "--dtype", "bool", "--fast"]
    assert run(arguments, Picky()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "│ tanh │ 1/1 │ - │" in out
    assert "tanh: declined 1 because bool is not implemented" in out
    assert "0 findings" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plante"], "there is no executor 'plante'. Did you mean 'planted'"),
        (["torch"], "'torch' runs what others decline"),
        (["planted", "--op", "tahn"], "no operation of op_db fits tahn"),
        (["planted", "--op", "tanh", "--op", "tahn"], "no operation of op_db fits tahn"),
    ],
)
def test_names_that_are_none(arguments: list[str], message: str) -> None:
    with pytest.raises(TjError, match=message):
        run(arguments, Planted("claim"))


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_that_cannot_be_written_is_said_before_the_run(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["any", option, str(tmp_path / "none" / "a")])
    assert f"argument {option}: there is no folder {tmp_path / 'none'}" in capsys.readouterr().err


@pytest.mark.slow
def test_the_kit_under_pytest() -> None:
    kit = ["--pyargs", "tj_conformance.executor", "--tj-executor=example_exec"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *kit]
    given = [*command, "--tj-op", "*silu", "--tj-op", "tanh", "-c", "/dev/null"]
    environment = os.environ | {"TJ_PLUGINS": "example_exec,torch,autograd"}
    done = subprocess.run(given, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 2 skipped" in done.stdout  # `silu.complex` is declined


def test_a_check_that_fails_is_in_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    """The executor takes no call of the operation, and says nothing of any."""

    class Failing:
        tj_name = "failing"

        @hookimpl
        def tj_executors(self) -> tuple[Executor, ...]:
            import torch

            claims: RuleTable[Claim] = RuleTable("claim")
            claims.set("torch.tanh", Claim(torch.tanh, lambda call: call.kwargs.get("out")))
            return (Executor("failing", claims),)

    arguments = ["failing", "--op", "tanh", "--dtype", "float32", "--fast", "--first", "--json"]
    assert run(arguments, Failing()) == 1
    out, err = capsys.readouterr()
    (cell,) = json.loads(out)["cells"]
    assert "failed in its check of torch.tanh" in cell["findings"][0]["problem"]
    assert "│ tanh      │   ! │" in err
