"""Packages that ``tj new-plugin`` writes: their own tests, imports, form and names."""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tj_autograd
import tj_core as tj
import tj_torch
from tj_torch.new_plugin.command import new_plugin_command
from tj_torch.new_plugin.writing import KINDS, LONGEST, write_plugin

LIBRARIES = {"tj_core", "tj_core.extend", "tj_torch.extend", "tj_autograd.extend"}
"""The modules of this project that written packages import."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A package of each kind."""
    root = tmp_path_factory.mktemp("written")
    return {kind: write_plugin(f"made_{kind}", kind, root) for kind in KINDS}


def run(*command: str, folder: Path, **environment: str) -> str:
    """Run ``command`` in ``folder`` without variables of tj; the output is the failure's text."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TJ_", "PYTEST"))}
    kept |= {"TJ_CACHE_DIR": "none", **environment}
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(folders: list[Path], site: Path) -> str:
    """Write metadata of the packages in ``folders`` to ``site``; return a path for Python.

    The entry points are those of their ``pyproject.toml``, as an editable installation has them.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        name, version = project["name"], project["version"]
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Requires-Dist: {text}\n" for text in project["dependencies"]]
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(head + "".join(lines), "utf-8")
        entries = project["entry-points"]["tj"].items()
        text = "[tj]\n" + "".join(f"{key} = {value}\n" for key, value in entries)
        (info / "entry_points.txt").write_text(text, "utf-8")
    sources = [str(folder / "src") for folder in folders]
    return os.pathsep.join([str(site), *sources, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.mark.slow
def test_each_kinds_own_tests_pass(written: dict[str, Path], tmp_path: Path) -> None:
    """In one process, since PyTorch takes seconds to load; each session names its plugins."""
    path = install(list(written.values()), tmp_path)
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    settings = ("--import-mode=importlib", "-c", str(written["executor"] / "pyproject.toml"))
    tests = [str(folder / "tests") for folder in written.values()]
    cache = tmp_path / "cache"
    out = run(
        *pytest_, *settings, *tests, folder=tmp_path, PYTHONPATH=path, TJ_CACHE_DIR=str(cache)
    )
    assert not cache.exists(), "tests leave no programs in their author's cache"
    assert "skipped" not in out
    assert int(out.rpartition(" passed")[0].split()[-1]) >= 40


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_package_alone_passes_its_tests(
    written: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """As its README says: pytest in its folder, with the settings of its ``pyproject.toml``."""
    path = install([written[kind]], tmp_path)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert " passed" in run(*command, folder=written[kind], PYTHONPATH=path)


def test_only_doors_are_imported(written: dict[str, Path]) -> None:
    for folder in written.values():
        for file in folder.rglob("*.py"):
            own = folder.name.replace("-", "_")
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                ours = {name for name in names if name.startswith("tj_")}
                assert {n for n in ours if n.partition(".")[0] != own} <= LIBRARIES, file


@pytest.mark.parametrize("name", ["a", "a" * LONGEST, "my_kernels"])
def test_written_files_are_formatted(tmp_path: Path, name: str) -> None:
    ruff = shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed here; tox's `all` leaves it out")
    for kind in KINDS:
        folder = write_plugin(name, kind, tmp_path / kind)
        for check in (("check",), ("format", "--check", "--diff")):
            run(ruff, *check, "--no-cache", ".", folder=folder)


@pytest.mark.slow  # mypy reads PyTorch
@pytest.mark.parametrize("kind", KINDS)
def test_written_files_have_types(written: dict[str, Path], tmp_path: Path, kind: str) -> None:
    mypy = shutil.which("mypy")
    if mypy is None:
        pytest.skip("mypy is not installed here; tox's `all` leaves it out")
    sources = [str(Path(module.__path__[0]).parent) for module in (tj, tj_torch, tj_autograd)]
    cache = tmp_path.parent / "mypy"  # one for all kinds
    python = ("--python-executable", sys.executable, "--cache-dir", str(cache))
    run(mypy, *python, folder=written[kind], MYPYPATH=os.pathsep.join(sources))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tj-acme", "such as 'acme'"),
        ("My Kernels", "such as 'my_kernels'"),
        ("1st", "such as 'acme'"),
        ("a__b", "such as 'a_b'"),
        ("../acme", "such as 'acme'"),
        ("", "is no name of a plugin"),
        ("a" * (LONGEST + 1), f"{LONGEST} at most"),
        ("class", "means something else"),
        ("strict", "means something else"),
        ("doctor", "means something else"),
        ("trace", "means something else"),
        ("torch", "there is a plugin 'torch' already"),
        ("core", "there is a package 'tj_core' already"),
    ],
)
def test_names_that_no_plugin_can_have(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(tj.TjError) as raised:
        command(name, "--into", str(tmp_path))
    assert message in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tj-acme").mkdir()
    with pytest.raises(tj.TjError, match="exists already"):
        command("acme", "--into", str(tmp_path))
    assert list((tmp_path / "tj-acme").iterdir()) == []


def test_the_command_says_what_is_next(tmp_path: Path, capsys: Any) -> None:
    assert command("my_kernels", "--kind", "fusion", "--into", str(tmp_path)) == 0
    folder = tmp_path / "tj-my-kernels"
    assert f"wrote {folder}" in capsys.readouterr().out
    assert (folder / "src" / "tj_my_kernels" / "plugin.py").exists()
    assert (folder / ".github" / "workflows" / "tests.yml").exists()
    assert not list(folder.rglob("*.tmpl"))
    assert "${{ matrix.python }}" in (folder / ".github/workflows/tests.yml").read_text()


def test_the_command_prints_json(tmp_path: Path, capsys: Any) -> None:
    assert command("acme", "--into", str(tmp_path), "--json") == 0
    said = json.loads(capsys.readouterr().out)
    folder = tmp_path / "tj-acme"
    assert said["folder"] == str(folder)
    assert sorted(said["files"]) == sorted(
        p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()
    )
    assert said["next"][0] == f"cd {folder}"


def command(*arguments: str) -> int:
    record = new_plugin_command()
    parser = argparse.ArgumentParser()
    record.configure(parser)
    return record.run(parser.parse_args(arguments), tj.Session(plugins=["torch"]))
