"""The command line on the README's own example."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tj_core.cli import main as cli

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


def test_without_inputs_a_sentence_says_what_to_do(capsys: Capture) -> None:
    assert cli.main(["explain", "unrun.py:f"]) == 2
    assert "takes x and weight, and nothing says with what to run it" in capsys.readouterr().err
