"""Each suite with ``--json``: JSON alone on stdout, texts on stderr; and figures of chunks."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tj_conformance.chunks import Suite, parser
from tj_conformance.databases.tally import Tally, tell
from tj_conformance.installed.families import FAMILIES
from tj_conformance.oracle.result import Kind
from tj_conformance.output import Output

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]

CHUNK = """
import os, sys
first = int(sys.argv[sys.argv.index("--chunk") + 1])
print(f"@ program {first}")
if first == 0:
    print("# 0, known: a reason\\n@ program 1\\n# differs\\n@decorated\\n@ different", flush=True)
    print("@ program 2", flush=True)
    os._exit(3)
print("@ regions\\n@ done")
"""


def test_json_is_all_that_is_on_stdout(capsys: Capture) -> None:
    output = Output(json=True)
    tally = Tally("bool", entries=2, samples=9, differing=Counter({Kind.ROUNDING: 1}))
    tell(output, ["acme differs", tally])
    assert output.end(output.differences) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "passed": False,
        "differences": ["acme differs"],
        "figures": [
            {
                "name": "bool",
                "entries": 2,
                "equal": 8,
                "differing": {Kind.ROUNDING.value: 1},
                "not_compared": 0,
                "breaking": 0,
            }
        ],
    }
    assert err == f"acme differs\n| bool | 2 | 8 | 1 {Kind.ROUNDING.value} | 0 | 0 |\n"


def test_without_it_texts_are_on_stdout(capsys: Capture) -> None:
    output = Output(json=False)
    tell(output, [Tally("bool", entries=2, samples=9)])
    assert output.end(output.differences) == 0
    assert capsys.readouterr() == ("| bool | 2 | 9 | 0 | 0 | 0 |\n", "")


def test_a_chunk_that_dies_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "acme_chunks.py").write_text(CHUNK, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    suite = Suite("acme_chunks", 4, lambda number: None, lambda number: f"text of {number}")
    given = parser("tj_conformance.gradients.own", 4).parse_args(["--json"])
    assert suite.run(given, "acme", lambda figures: f"{figures['programs']} programs") == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "passed": False,
        "differences": ["# differs\n@decorated", "# the process died (3)\ntext of 2"],
        "figures": [{"different": 2, "programs": 4, "regions": 1}],
    }
    assert "# 0, known: a reason\n" in err
    assert err.endswith("to 4: 4 programs\nacme: 4 programs\n")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("module", "arguments", "figures"),
    [
        ("databases.tally", ["bool:3/349"], {"name": "bool", "entries": 1}),
        ("gradients.tally", ["modules:5/150"], {"name": "modules", "entries": 1}),
        ("gradients.own", ["--only", "3"], None),
        ("names.run", ["--only", "3"], None),
        ("gradients.orders", ["--programs", "3"], {"programs": 3, "different": 0}),
        ("programs.fuzz", ["--programs", "3"], {"programs": 3, "different": 0}),
        (
            "installed.__main__",
            [],
            {"name": "op_db:float32", "few": FAMILIES["op_db:float32"].few},
        ),
    ],
)
def test_each_suite(
    module: str, arguments: list[str], figures: dict[str, Any] | None, capsys: Capture
) -> None:
    main = importlib.import_module(f"tj_conformance.{module}").main
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert (data["passed"], data["differences"]) == (True, [])
    if figures is None:
        assert (data["figures"], "def " in err) == ([], True), "the program's text"
    else:
        assert figures.items() <= data["figures"][0].items()
