"""``tj plugins order``: who is asked first, and by what; the order in ``pyproject.toml``."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest
import tj_core as tj
from tj_core.cli import main as cli
from tj_core.cli.project_file import set_plugins
from tj_core.errors import ConfigError
from tj_core.host.config import load_config
from tj_core.host.ties import rivals, ties
from tj_core.testing.numeric import NumericPlugin
from tj_core.testing.plugins import load_plugins

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.testing.plugins import FakeDist

pytestmark = pytest.mark.usefixtures("own_project")

Capture = pytest.CaptureFixture[str]

EXECUTOR = """
@hookimpl
def tj_executors():
    claims = RuleTable("claim")
    for key in KEYS:
        claims.set(key, Claim(lambda *vectors: [a + b for a, b in zip(*vectors)]))
    return (Executor(NAME, claims, fallback=TJ_FALLBACK),)
"""


def executor(
    fake_dist: FakeDist, name: str, *keys: str, priority: int = 0, last: bool = False
) -> None:
    """Install a plugin with an executor that claims ``keys``."""
    head = f"NAME, KEYS, TJ_PRIORITY, TJ_FALLBACK = {name!r}, {keys!r}, {priority}, {last}\n"
    fake_dist(name, head + EXECUTOR)


@pytest.fixture
def three(fake_dist: FakeDist) -> None:
    """Plugins ``beta`` and ``acme``, which both take num.add, and ``other``, which does not."""
    executor(fake_dist, "beta", "num.add", "num.fill_")
    executor(fake_dist, "acme", "num.add", "num.mul")
    executor(fake_dist, "other", "num.neg")
    executor(fake_dist, "early", "num.add", priority=1)
    executor(fake_dist, "late", "*", last=True)


def run(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of ``tj argv``."""
    status = cli.main(argv)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.usefixtures("three")
def test_names_decide_where_nothing_else_does() -> None:
    (tie,) = ties(load_plugins())
    assert str(tie) == ("acme is asked before beta by their names alone, and both may take num.add")
    assert rivals(load_plugins()) == (("acme", "beta", "other"),)
    assert ties(load_plugins("beta", "...")) == ()
    assert rivals(load_plugins("beta", "...")) == (("acme", "other"),)
    assert ties(load_plugins(executors=["beta", "..."])) == ()


def test_a_namespace_is_a_tie_too(fake_dist: FakeDist) -> None:
    executor(fake_dist, "a", "num.*")
    executor(fake_dist, "b", "num.add")
    executor(fake_dist, "c", "torch.add")
    assert [tie.operations for tie in ties(load_plugins())] == [("num.add",)]


@pytest.mark.usefixtures("three")
def test_the_list_says_so(capsys: Capture, hook_calls: list[tuple[str, str]]) -> None:
    _, out, _ = run(capsys, "plugins")
    assert "acme, beta, other: names alone decide who of them is asked first" in out
    assert "tj plugins order" in out
    data = json.loads(run(capsys, "plugins", "--json")[1])
    assert {p["name"]: p["tied"] for p in data}["beta"] == ["acme", "other"]
    assert "tj_executors" not in [hook for _, hook in hook_calls], "it would import libraries"
    _, out, _ = run(capsys, "--plugins=acme,beta,other,...", "plugins")
    assert "names alone" not in out


@pytest.mark.usefixtures("three")
def test_order_shows_who_decided(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.tj]\nplugins = ["other", "..."]\n', "utf-8")
    _, out, _ = run(capsys, "plugins", "order")
    rows = [line.split(None, 2)[1:] for line in out.splitlines()[1:6]]
    assert rows == [
        ["other", f"plugins ({tmp_path / 'pyproject.toml'} [tool.tj])"],
        ["early", "TJ_PRIORITY = 1"],
        ["acme", "its name"],
        ["beta", "its name"],
        ["late", "always asked last"],
    ]
    assert "acme is asked before beta by their names alone, and both may take num.add" in out
    assert "`tj plugins order acme beta` writes this order" in out
    data = json.loads(run(capsys, "plugins", "order", "--json")[1])
    assert [entry["name"] for entry in data["order"]] == [name for name, _ in rows]
    assert len(data["ties"]) == 1


@pytest.mark.usefixtures("three")
def test_order_writes_the_file(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    assert run(capsys, "plugins", "order", "beta", "acme")[:2] == (
        0,
        f'{file}\n[tool.tj]\nplugins = ["beta", "acme", "..."]\n',
    )
    assert load_config().core.plugins == ("beta", "acme", "...")
    assert "names alone" not in run(capsys, "plugins", "order")[1]
    run(capsys, "plugins", "order", "--write")
    assert load_config().core.plugins == ("beta", "acme", "early", "other", "...")
    status, _, err = run(capsys, "plugins", "order", "acmme")
    assert status == 2
    assert "Did you mean 'acme'?" in err


@pytest.mark.usefixtures("three")
def test_one_line_is_logged_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("tj"), "handle", lambda r: said.append(r.getMessage()))
    program = lambda x, y: x + y  # noqa: E731
    session = tj.Session(plugins=[NumericPlugin(), "..."], overrides={"disable": ["early"]})
    run_ = tj.jit(program, session=session)
    assert run_([1.0], [2.0]) == [3.0]
    tj.jit(program, session=session)([1.0, 2.0], [2.0, 3.0])
    (line,) = said
    assert "acme is asked before beta by their names alone" in line
    assert "\n" not in line
    assert "by their names alone" in str(tj.explain(run_))
    ordered = tj.jit(program, session=session, executors=["acme", "..."])
    ordered([1.0], [2.0])
    assert tj.explain(ordered).ties == ()


@pytest.mark.usefixtures("three")
def test_the_line_is_short_with_many_plugins(
    monkeypatch: pytest.MonkeyPatch, fake_dist: FakeDist
) -> None:
    for name in ("gamma", "delta"):
        executor(fake_dist, name, "num.add")
    said: list[str] = []
    monkeypatch.setattr(logging.getLogger("tj"), "handle", lambda r: said.append(r.getMessage()))
    session = tj.Session(plugins=[NumericPlugin(), "..."], overrides={"disable": ["early"]})
    assert tj.jit(lambda x, y: x + y, session=session)([1.0], [2.0]) == [3.0]
    assert said == [
        "tj: acme is asked before beta by their names alone, and both may take num.add, and so are "
        "5 other pairs of plugins. `tj plugins order` shows and sets the order"
    ]


# ------------------------------------------------------------------------------- the file

FILE = """\
# my project
[project]
name = "x"   # its name

[tool.tj]  # settings
check = 1
plugins = [
  # the fast one
  "fast",  # measured
  'slow',
  "...",
]  # in order

[tool.tj.x]
plugins = ["not these"]
"""


def test_all_else_stays(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(FILE, "utf-8")
    set_plugins(file, ["slow", "new", "fast", "..."])
    old = FILE[FILE.index("  # the") : FILE.index("]  # in order")]
    new = '  "slow",\n  "new",\n  # the fast one\n  "fast",  # measured\n  "...",\n'
    assert file.read_text("utf-8") == FILE.replace(old, new)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[tool.tj]\nplugins = ["a"]\n'),
        ("[project]\nx = 1", '[project]\nx = 1\n\n[tool.tj]\nplugins = ["a"]\n'),
        ("[tool.tj]\ncheck = 1\n", '[tool.tj]\nplugins = ["a"]\ncheck = 1\n'),
        ("[tool.tj.x]\ny = 1\n", '[tool.tj.x]\ny = 1\n\n[tool.tj]\nplugins = ["a"]\n'),
        (
            '[tool.tj]\nplugins = ["b", "]"] # c\ncheck = 1\n',
            '[tool.tj]\nplugins = ["a"] # c\ncheck = 1\n',
        ),
        ('[tool.tj]\n  "plugins"=[]\n[z]\n', '[tool.tj]\n  "plugins"=["a"]\n[z]\n'),
    ],
)
def test_other_layouts(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(before, "utf-8")
    set_plugins(file, ["a"])
    assert file.read_text("utf-8") == after


@pytest.mark.parametrize(
    "text",
    ['tool.tj.plugins = ["b"]\n', "[tool]\ntj = {check = 1}\n", '[tool]\ntj.plugins = ["b"]\n'],
)
def test_a_layout_that_cannot_be_kept_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as error:
        set_plugins(file, ["a"])
    assert file.read_text("utf-8") == text
    assert 'write it by hand: plugins = ["a"]' in error.value.hint
