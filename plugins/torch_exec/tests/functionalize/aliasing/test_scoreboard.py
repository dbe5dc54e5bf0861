"""Programs that other compilers get wrong and tj does not: the table of `docs/scoreboard.md`.

The programs are those of `board.py` and `board_values.py`. Every run measures tj's column, and
torch.compile's for a few programs; ``TJ_FULL=1`` measures it for all programs, and compares with
the table. ``python test_scoreboard.py`` writes the table. ``-rP`` prints the table.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.world import FACTS, RELATIONS
from tj_conformance.programs.aliasing import check
from tj_conformance.programs.cases import modules_in
from tj_conformance.programs.scenes import placed
from tj_conformance.sampling import FULL

PAGE = Path(__file__).resolve().parents[5] / "docs" / "scoreboard.md"
BOARDS = [module.case for module in modules_in(Path(__file__).parent, pattern="board*.py")]
CASES = [case for board in BOARDS for case in board.cases]
WHERE = {name: where for board in BOARDS for name, where in board.where.items()}


# --------------------------------------------------------------------------- measuring


@functools.cache
def session() -> tj.Session:
    """Session with this plugin alone, regardless of the project's configuration."""
    with tempfile.TemporaryDirectory() as folder:
        nothing = Path(folder, "nothing.toml")
        nothing.touch()
        return tj.Session(["torch"], start=nothing)


def ours(fn):
    return tj.jit(fn, session=session())


PEERS = {
    "aot_eager": lambda fn: torch.compile(fn, backend="aot_eager"),
    "inductor": lambda fn: torch.compile(fn, backend="inductor"),
}


def outcome(case, jit) -> str:
    """``equal``, or a short text of the difference; a version counter only if all else is equal."""
    found = measured(case, jit)
    if found == "wrong _version":
        worse = measured(case, jit, ignore=("_version",))
        return found if worse == "equal" else worse
    return found


def measured(case, jit, ignore=()) -> str:
    torch._dynamo.reset()
    (kind,) = case.kinds
    scenes = [placed(layout, kind) for layout in case.layouts]
    try:
        report = check(case.make, scenes, jit=jit, create_graph=case.create_graph, ignore=ignore)
    finally:
        torch._dynamo.reset()
        torch.set_grad_enabled(True)
    if report.ok:
        return "equal"
    print(report)
    return min(map(words, report.differences), key=severity)


def severity(text: str) -> bool:
    return text == "wrong _version"


def words(difference) -> str:
    got, _, expected = difference.what.partition(" instead of ")
    if difference.what.startswith("values"):
        return "wrong gradient" if ".grad" in difference.where else "wrong values"
    if difference.what.endswith(" differs"):  # what is ambient
        return f"wrong {difference.what.removesuffix(' differs')}"
    for name in (*FACTS, *RELATIONS):
        if got.startswith(name):
            return f"wrong {name}" if name in FACTS else "other aliases"
    if got.startswith("tensors"):
        return "other aliases"
    if error := re.search(r"(\w+(Error|Failed))", got):
        return f"raises {error[1]}"
    return "no error" if "Error" in expected else "wrong values"


def table(columns) -> str:
    """Scoreboard as Markdown; ``columns`` are ways of compiling, by name."""
    lines = [f"| program | reported as | {' | '.join(columns)} |"]
    lines.append("|---|---|" + "---|" * len(columns))
    for c in CASES:
        found = [outcome(c, jit) for jit in columns.values()]
        lines.append(f"| `{c.name}` | {WHERE[c.name]} | {' | '.join(found)} |")
    return "\n".join(lines) + "\n"


def rows_of(page: str) -> dict[str, list[str]]:
    found = [
        line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[2:] for row in found}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_tj_equals_eager(case) -> None:
    assert outcome(case, ours) == "equal"


def test_the_page_lists_all_programs() -> None:
    listed = rows_of(PAGE.read_text("utf-8"))
    assert list(listed) == [c.name for c in CASES]
    assert {row[0] for row in listed.values()} == {"equal"}
    print(PAGE.read_text("utf-8"))


def test_others_fail_on_most_of_it() -> None:
    listed = rows_of(PAGE.read_text("utf-8"))
    wrong = [name for name, row in listed.items() if {*row[1:]} != {"equal"}]
    assert len(wrong) >= len(listed) // 2


SPOT = (*CASES[:3], *(c for c in CASES if c.name == "effect_beside_overlapping"))


@pytest.mark.parametrize("case", SPOT, ids=lambda c: c.name)
def test_what_aot_eager_does_is_seen_on_the_spot(case) -> None:
    """For a few programs; for all with ``TJ_FULL=1``, see below."""
    if written_for() != torch.__version__.split("+")[0]:
        pytest.skip("the page is of another PyTorch")
    found = outcome(case, PEERS["aot_eager"])
    print(case.name, found)
    assert found == rows_of(PAGE.read_text("utf-8"))[case.name][1]


def written_for() -> str:
    """Version of PyTorch for which the page was written."""
    return re.search(r"PyTorch (\S+),", PAGE.read_text("utf-8"))[1]


VARYING = ("many_terms_at_a_place",)
"""Programs for which a peer reads memory that nobody has written: what is wrong varies."""


def steady(rows: dict[str, list[str]]) -> dict[str, list[str]]:
    """``rows`` without what varies from run to run."""
    varying = {name: [cell.partition(" ")[0] for cell in rows[name]] for name in VARYING}
    return rows | varying


@pytest.mark.skipif(not FULL, reason="TJ_FULL=1 measures torch.compile; that takes minutes")
def test_the_page_says_what_torch_compile_does() -> None:
    page = PAGE.read_text("utf-8")
    if written_for() != torch.__version__.split("+")[0]:
        pytest.skip(f"the page is of PyTorch {written_for()}, this is {torch.__version__}")
    new = table({"tj": ours, **PEERS})
    print(new)
    assert steady(rows_of(new)) == steady(rows_of(page)), (
        "python test_scoreboard.py writes the page anew"
    )


def main() -> None:
    """Measure all programs and write the page; ignore environment variables of tj."""
    for name in [name for name in os.environ if name.startswith("TJ_")]:
        del os.environ[name]
    page = PAGE.read_text("utf-8")
    head = page.partition("| program |")[0]
    head = re.sub(r"PyTorch \S+,", f"PyTorch {torch.__version__.split('+')[0]},", head)
    PAGE.write_text(head + table({"tj": ours, **PEERS}), "utf-8")
    print(PAGE.read_text("utf-8"), file=sys.stderr)


if __name__ == "__main__":
    main()
