"""Imports point one way: executors -> other plugins -> tj_torch -> tj_core.

Read off the sources, so that an import inside a function counts as well.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from pathlib import Path

Distributions = Any

FOUNDATIONS = ("tj-core", "tj-torch")


def is_executor(distribution: Any) -> bool:
    """Executors are the folders called ``*_exec``; tj-torch also is what the others stand on."""
    folder = distribution.folder.name.replace("-", "_")
    return folder.endswith("_exec") and distribution.name not in FOUNDATIONS


def imported(node: ast.AST) -> list[str]:
    """The modules a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [node.module or ""]
    return []


def imports(file: Path) -> Iterator[tuple[int, str]]:
    """Every import of a file, with its line."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"), str(file))):
        for module in imported(node):
            yield node.lineno, module


def imports_when_loaded(file: Path) -> Iterator[tuple[int, str]]:
    """The imports that run when the module is imported: not those for type checkers only."""
    waiting: list[ast.AST] = list(ast.parse(file.read_text("utf-8"), str(file)).body)
    while waiting:
        node = waiting.pop()
        for module in imported(node):
            yield node.lineno, module
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)


def of_ours(distribution: Any, distributions: Distributions) -> Iterator[tuple[str, str]]:
    """Imports of other distributions of this tree by a distribution, with the places."""
    packages = {d.package: d.name for d in distributions.values()}
    for file in distribution.files:
        for line, module in imports(file):
            other = packages.get(module.partition(".")[0])
            if other is not None and other != distribution.name:
                yield other, f"{file}:{line}"


def requirements(distribution: Any) -> set[str]:
    return {Requirement(text).name for text in distribution.project.get("dependencies", [])}


def test_there_is_something_to_look_at(distributions: Distributions) -> None:
    assert {"tj-core", "tj-torch", "tj-example-exec"} <= set(distributions)
    assert all(d.files for d in distributions.values())
    assert is_executor(distributions["tj-example-exec"])
    assert "tj-core" in dict(of_ours(distributions["tj-torch"], distributions))


def test_core_imports_neither_plugins_nor_pytorch(distributions: Distributions) -> None:
    core = distributions["tj-core"]
    assert list(of_ours(core, distributions)) == []
    wrong = [
        f"{file}:{line}: {module}"
        for file in core.files
        for line, module in imports(file)
        if module.partition(".")[0] in ("torch", "numpy", "transformers")
    ]
    assert wrong == []


def test_core_names_no_plugin_package(distributions: Distributions) -> None:
    """Not in a string either: that would be an import in disguise, or a special case.

    Distributions may be named: hints say what to install.
    """
    core = distributions["tj-core"]
    packages = [d.package for d in distributions.values() if d is not core]
    pattern = re.compile(rf"\b({'|'.join(packages)})\b")
    wrong = [
        f"{file}:{number}: {line.strip()}"
        for file in core.files
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert wrong == []


def test_nobody_imports_an_executor(distributions: Distributions) -> None:
    executors = {d.name for d in distributions.values() if is_executor(d)}
    wrong = [
        f"{where}: {other}"
        for d in distributions.values()
        for other, where in of_ours(d, distributions)
        if other in executors
    ]
    assert wrong == []


def test_what_is_imported_is_required(distributions: Distributions) -> None:
    wrong = [
        f"{where}: {other} is no dependency of {d.name}"
        for d in distributions.values()
        for other, where in of_ours(d, distributions)
        if other not in requirements(d)
    ]
    assert wrong == []


def test_requirements_have_no_cycle(distributions: Distributions) -> None:
    left = {n: requirements(d) & set(distributions) for n, d in distributions.items()}
    while left:
        free = [name for name, needed in left.items() if not needed & set(left)]
        assert free, f"these depend on each other: {sorted(left)}"
        for name in free:
            del left[name]


def test_plugin_modules_load_light(distributions: Distributions) -> None:
    """Modules of entry points import the standard library, tj_core and their package's options."""
    light = {*sys.stdlib_module_names, "tj_core"}
    wrong = [
        f"{file}:{line}: {module}"
        for d in distributions.values()
        for file in (*d.source.glob("plugin.py"), *d.source.glob("options.py"))
        for line, module in imports_when_loaded(file)
        if module.partition(".")[0] not in light and module != f"{d.package}.options"
    ]
    assert wrong == []
