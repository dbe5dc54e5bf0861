"""Private names of PyTorch stand in tables: a new release breaks in one of them.

A table says of each name what it is used for and what is lost without it (docs/versions.md).
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch

if TYPE_CHECKING:
    from pathlib import Path

Distributions = Any

ADAPTERS = (
    "tj_torch/torch_private/", "tj_inductor/adapter/", "tj_onednn/names.py",
    "tj_cudagraph/names.py", "tj_cudagraph/testing/recorder.py", "tj_distributed/names.py",
    "tj_example_subclass/tensor.py",
)  # fmt: skip

TABLES = (
    "tj_torch.capture.dynamo.features", "tj_inductor.adapter.features", "tj_onednn.names",
    "tj_cudagraph.names", "tj_nvfuser.testing.names",
    "tj_distributed.names",
)  # fmt: skip
"""The modules of all tables of this tree."""

NO_TABLE = ("tj_conformance", "tj_example_subclass")
"""Packages without a table: one compares with PyTorch's inside, one is no plugin."""


_PATH = re.compile(r"\w+(\.\w+)+\.?")
"""The text of a name, or of the start of one; no text that mentions one."""


def private_names(file: Path) -> Iterator[str]:
    """The names of PyTorch with an underscore that ``file`` imports, looks up, or has as text."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"), str(file))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [node.value.rstrip(".")] if _PATH.fullmatch(node.value) else []
        else:
            continue
        yield from (name for name in found if _is_private(name))


def _is_private(name: str) -> bool:
    first, *parts = name.split(".")
    return first == "torch" and any(p.startswith("_") and not p.startswith("__") for p in parts)


def test_private_names_stand_in_the_adapters(distributions: Distributions) -> None:
    wrong: dict[str, list[str]] = {}
    used = set()
    for distribution in distributions.values():
        if distribution.package == "tj_conformance":
            continue
        for file in distribution.files:
            path = file.relative_to(distribution.source.parent).as_posix()
            names = sorted(set(private_names(file)))
            if names and path.startswith(ADAPTERS):
                used.add(next(a for a in ADAPTERS if path.startswith(a)))
            elif names:
                wrong[path] = names
    assert wrong == {}
    assert used == set(ADAPTERS), "each adapter is one"


@pytest.fixture(scope="module")
def paths() -> set[str]:
    """Paths of all names in the tables, older and newer ones."""
    tables = [importlib.import_module(module).TABLE for module in TABLES]
    names = [name for table in tables for name in (*table.names.values(), *table.used())]
    return {path for n in names for path in (n.path, *(path for _, path in n.moved))}


def test_what_adapters_use_stands_in_a_table(distributions: Distributions, paths: set[str]) -> None:
    wrong = [
        f"{file.name}: {name}"
        for distribution in distributions.values()
        if distribution.package not in NO_TABLE
        for file in distribution.files
        for name in private_names(file)
        if not any(f"{path}.".startswith(f"{name}.") for path in paths)
    ]
    assert wrong == []


@pytest.mark.parametrize("table", ["levels", "stateless", "denied", "flags"])
def test_rules_for_private_names_stand_in_a_table(table: str, paths: set[str]) -> None:
    """Keys and paths of rules may be put together, where no source has them whole."""
    rules = tj.Session().tables[table]
    names = {text for rule in rules for text in _texts((rule.key, rule.value)) if _is_private(text)}
    assert sorted(names - paths) == []


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)


OF_OBJECTS = {
    "_inductor_lowering_function": "of functions that Inductor makes",
    "_inductor_lowering_output_metadata_fn": "of functions that Inductor makes",
    "_weakrefs": "of Dynamo's manager of guards, which has it when it is made",
    "_getframe": "of Python's sys",
    "_init_fn": "of a custom operator, which has it when it is made",
    "_backend_fns": "of a custom operator, which has it when it is made",
    "_torchdynamo_inline": "set on tj's own functions, for Dynamo to read",
}
"""Private members of others that no path finds, or that are not PyTorch's."""


def test_private_members_of_pytorchs_objects_stand_in_a_table(
    distributions: Distributions, paths: set[str]
) -> None:
    """A member counts as PyTorch's if no file of this tree defines one of its name."""
    own, used = set[str](), dict[str, str]()
    for distribution in distributions.values():
        for file in distribution.files:
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                own |= _defined(node)
                if isinstance(node, ast.Attribute) and distribution.package not in NO_TABLE:
                    used.setdefault(node.attr, f"{file.name}:{node.lineno} {ast.unparse(node)}")
    known = {part for path in paths for part in path.split(".")}
    known |= vars(torch.nn.Module()).keys() | vars(torch.fx.Graph()).keys()
    members = {m for m in used if m.startswith("_") and not m.startswith("__")} - own
    assert {used[m] for m in members - known - OF_OBJECTS.keys()} == set()
    assert members >= OF_OBJECTS.keys(), "each exception is one"


def _defined(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return set()
