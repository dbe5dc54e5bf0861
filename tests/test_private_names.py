"""Private names of PyTorch stand in a few adapter files: a new release breaks in one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Distributions = Any

ADAPTERS = (
    "tj_torch/torch_private/", "tj_torch/ops/facts/python_backwards.py",
    "tj_torch/capture/dynamo/asserts.py", "tj_torch/capture/dynamo/corrections.py",
    "tj_distributed/adapter.py",
    "tj_inductor/adapter/", "tj_onednn/adapter.py",
    "tj_cudagraph/adapter.py", "tj_cudagraph/testing/recorder.py",
    "tj_nvfuser/testing/reference.py", "tj_example_subclass/tensor.py",
)  # fmt: skip


def private_names(file: Path) -> Iterator[str]:
    """The names of PyTorch with an underscore that ``file`` imports or looks up."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"), str(file))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found = [ast.unparse(node)]
        elif isinstance(node, ast.Dict):  # a table of names, by module
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            found = [key for key in keys if isinstance(key, str)]
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
        if distribution.package == "tj_conformance":  # it compares with PyTorch's own inside
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
