"""Parts of a release: fragments of its notes, versions, and workflows that name what exists."""

from __future__ import annotations

import configparser
import itertools
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
WORKSPACE: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
RELEASE = runpy.run_path(str(ROOT / "scripts" / "release.py"))
FRAGMENTS = sorted(p for p in (ROOT / "changes").iterdir() if p.name != "README.md")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_fragments_of_the_notes_are_one_sentence_or_a_few_of_a_known_kind() -> None:
    kinds = {kind["directory"] for kind in WORKSPACE["tool"]["towncrier"]["type"]}
    wrong = []
    for path in FRAGMENTS:
        named = re.fullmatch(r"\+[a-z0-9-]+\.([a-z]+)\.md", path.name)
        text = path.read_text("utf-8")
        if not named or named[1] not in kinds or not re.fullmatch(r"\S[^\n]*\.\n", text):
            wrong.append(path.name)
    assert wrong == []


def test_the_notes_go_where_the_changelog_has_room() -> None:
    settings = WORKSPACE["tool"]["towncrier"]
    text = (ROOT / settings["filename"]).read_text("utf-8")
    assert text.count(settings["start_string"]) == 1
    assert (ROOT / settings["directory"]).is_dir()


def environments() -> set[str]:
    """Names of the environments of tox.ini, with their alternatives spelled out."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini", "utf-8")
    found = set()
    for section in parser.sections():
        if section.startswith("testenv:"):
            parts = re.split(r"\{(.*?)\}", section.removeprefix("testenv:"))
            found |= {"".join(c) for c in itertools.product(*(p.split(",") for p in parts))}
    return found


TOX = re.compile(r"tox run -e ([\w,-]+)")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_workflows_name_environments_that_exist(path: Path) -> None:
    named = {
        name for match in TOX.finditer(path.read_text("utf-8")) for name in match[1].split(",")
    }
    assert named
    assert named <= environments()


def test_pages_name_environments_that_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    texts = [page.read_text("utf-8") for page in pages]
    named = {name for t in texts for m in TOX.finditer(t) for name in m[1].split(",")}
    assert {"docs", "all", "torch210", "core-py310"} <= named
    assert named <= environments()


def test_files_that_workflows_and_hooks_run_exist() -> None:
    for path in (*WORKFLOWS, ROOT / ".pre-commit-config.yaml"):
        named = re.findall(r"\b((?:scripts|tests)/[\w/]+\.py)\b", path.read_text("utf-8"))
        assert [name for name in named if not (ROOT / name).exists()] == [], path.name


def test_groups_of_dependencies_are_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    for group in ("docs", "release", "lint", "build"):
        assert set(WORKSPACE["dependency-groups"][group]) <= pinned, group


def test_a_version_is_written_with_the_ranges_of_its_minor_release() -> None:
    text = """version = "0.1.0"
dependencies = ["tj-core>=0.1,<0.2", "tj-torch[demo]>=0.1,<0.2", "numpy>=2,<3"]
[tool.x]
version = "0.1.0"
"""
    assert (
        RELEASE["with_version"](text, "0.3.1")
        == """version = "0.3.1"
dependencies = ["tj-core>=0.3,<0.4", "tj-torch[demo]>=0.3,<0.4", "numpy>=2,<3"]
[tool.x]
version = "0.1.0"
"""
    )


@pytest.mark.parametrize("version", ["0.2", "v0.2.0", "0.2.0rc1"])
def test_other_forms_of_versions_are_refused(version: str) -> None:
    with pytest.raises(SystemExit, match="is no version like"):
        RELEASE["main"]([version])


def test_every_distribution_is_released_in_the_same_version() -> None:
    files = RELEASE["projects"]()
    assert len(files) == len({*ROOT.glob("*/*/pyproject.toml"), ROOT / "core" / "pyproject.toml"})
    for file in files:
        text = file.read_text("utf-8")
        assert RELEASE["with_version"](text, RELEASE["version"]()) == text, file
        assert 'version = "7.8.9"' in RELEASE["with_version"](text, "7.8.9"), file
        assert ">=0." not in "".join(re.findall(r'"tj-.*"', RELEASE["with_version"](text, "7.8.9")))


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The script that uses the wheels."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return runpy.run_path(str(ROOT / "scripts" / "check_wheels.py"))


def test_what_hangs_in_the_check_of_wheels_is_named(wheels: dict[str, Any], tmp_path: Path) -> None:
    environment = object.__new__(wheels["Environment"])
    environment.bin, environment.elsewhere = Path(sys.executable).parent, tmp_path
    environment.environ = {}
    program = "import time; print('so far', flush=True); time.sleep(60)"
    with pytest.raises(SystemExit, match=r"(?s)time\.sleep\(60\)\ntook more than 1 s:\nso far"):
        environment.run(Path(sys.executable).name, "-c", program, limit=1)


def test_wheels_try_each_kind_of_plugin(wheels: dict[str, Any]) -> None:
    import written_plugins  # type: ignore[import-not-found]
    from tj_torch.new_plugin.writing import KINDS

    assert {*written_plugins.KINDS} == {*KINDS}
    written_plugins._same({"a"}, {"a"}, "files")
    with pytest.raises(SystemExit, match=r"files: there are \['b'\] more, and \['a'\] are gone"):
        written_plugins._same({"a"}, {"b"}, "files")


def test_the_notes_of_a_release_are_its_section() -> None:
    changelog = "# Changes\n\n## 0.2.0 (2027-01-01)\n\n### New\n\n- b\n\n## 0.1.0 (x)\n\n- a\n"
    assert RELEASE["notes"](changelog, "0.2.0") == "### New\n\n- b"
    assert RELEASE["notes"](changelog, "0.1.0") == "- a"
    with pytest.raises(SystemExit, match=r"no section on 0\.1"):
        RELEASE["notes"](changelog, "0.1")


def test_a_tag_must_be_the_version() -> None:
    RELEASE["main"](["--check", f"v{RELEASE['version']()}"])
    with pytest.raises(SystemExit, match=r"the tag is v9\.9\.9"):
        RELEASE["main"](["--check", "v9.9.9"])
