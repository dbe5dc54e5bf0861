"""Compiled regions as files for a package: one library of kernels, and a module for each region.

The module is the text that Inductor generates, with names of kernels in the library in place of
their C++ code, and without what it imports of Inductor. The C++ code is kept beside the library.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tj_core.extend import Fused, FusionRegion, PackageError, symbols_in

from tj_inductor.adapter.libraries import announce_data_pointers, library
from tj_inductor.adapter.modules import COMPILERS, Compiled, extern_kernels
from tj_inductor.compiler import Compiler, fused, fused_parts, variant_of
from tj_inductor.kernels import Waiting, one_file
from tj_inductor.repeated.finding import equal_parts
from tj_inductor.thrown import raising_as_eager
from tj_inductor.variants import Variants

__all__ = ["members", "restore"]

LIBRARY, SOURCE, REGIONS = "kernels.so", "kernels.cpp", "regions.json"


def members(
    compiler: Compiler, regions: Sequence[tuple[FusionRegion, Fused]]
) -> Mapping[str, bytes]:
    """The files of ``regions``; their kernels are compiled once more, all together.

    :raises PackageError: for a region that has no text, or that needs Inductor when it runs.
    """
    files: dict[str, bytes] = {}
    kernels: dict[tuple[tuple[str, ...], str], Waiting] = {}
    facts: dict[str, Any] = {}
    for region, made in regions:
        if not made.kept:
            raise PackageError(
                f"region {region.key} holds tensors of its own, or has not been compiled yet",
                source=region.source,
            )
        kept = json.loads(made.kept)
        own = [(region, kept)]
        if isinstance(kept, dict):
            own = [*zip((e.region for e in equal_parts(region) or ()), kept["parts"], strict=True)]
            facts[region.name] = {"parts": [part.name for part, _ in own]}
        for part, (source, strides, same, conditions) in own:
            module = _Module(part, source, compiler, kernels)
            files[f"{part.name}.py"] = module.text().encode()
            facts[part.name] = {"strides": strides, "same": same, "conditions": conditions}
    files[REGIONS] = json.dumps(facts, indent=1).encode()
    if kernels:
        text = one_file([*kernels.values()])
        files[SOURCE] = text.encode()
        files[LIBRARY] = Path(library(text).__file__).read_bytes()
    return files


def restore(regions: Sequence[FusionRegion], files: Mapping[str, bytes]) -> Sequence[Fused]:
    """The regions from their files; Inductor is not imported."""
    kernels = _loaded(files[LIBRARY]) if LIBRARY in files else None
    code = files.get(SOURCE, b"//").decode()
    facts = json.loads(files[REGIONS])
    made = [_restored(r, files, kernels, facts) for r in regions]
    return [
        replace(f, function=raising_as_eager(r, f.function, code))
        for r, f in zip(regions, made, strict=True)
    ]


def _restored(
    region: FusionRegion, files: Mapping[str, bytes], kernels: Any, facts: Mapping[str, Any]
) -> Fused:
    own = facts[region.name]
    if "parts" in own:
        made = [_compiled(name, files, kernels, facts[name]) for name in own["parts"]]
        return fused_parts(region, equal_parts(region) or (), made)
    one = _compiled(region.name, files, kernels, own)
    if not symbols_in(region.inputs):
        return fused(region, one)
    first = variant_of(one, own["conditions"])
    # Sizes that the variant does not serve run by PyTorch's operations.
    return fused(region, Variants(region, _never, first, most=0))


def _compiled(
    name: str, files: Mapping[str, bytes], kernels: Any, facts: Mapping[str, Any]
) -> Compiled:
    text = files[f"{name}.py"].decode()
    scope: dict[str, Any] = {"kernels": kernels, "extern_kernels": extern_kernels}
    exec(compile(text, f"<tj {name}>", "exec"), scope)
    strides = [None if s is None else tuple(s) for s in facts["strides"]]
    return Compiled.of(scope["call"], text, strides, facts["same"], whole=True)


def _never(sizes: Mapping[str, int]) -> Any:
    raise AssertionError(f"compiled for {dict(sizes)}, where there is no compiler")


def _loaded(data: bytes) -> Any:
    """The extension module in ``data``, from a folder that only this user reads."""
    announce_data_pointers()
    folder = tempfile.mkdtemp(prefix="tj-package-")  # with mode 0700
    try:
        path = os.path.join(folder, "kernel.so")
        Path(path).write_bytes(data)
        spec = importlib.util.spec_from_file_location("kernel", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        # A loaded library stays mapped; on Windows it cannot be removed before the process ends.
        shutil.rmtree(folder, ignore_errors=True)
    return module


class _Module:
    """The module of generated code of ``region``, whose C++ kernels are added to ``kernels``."""

    def __init__(
        self,
        region: FusionRegion,
        source: str,
        compiler: Compiler,
        kernels: dict[tuple[tuple[str, ...], str], Waiting],
    ) -> None:
        self.region = region
        self.tree = ast.parse(source)
        self.compiler = compiler
        self.kernels = kernels

    def text(self) -> str:
        """The text of the module.

        :raises PackageError: if it uses a name of Inductor's that has no substitute.
        """
        body = [made for node in self.tree.body for made in self.statement(node)]
        module = ast.Module(body, [])
        known = {"kernels", "extern_kernels", *dir(builtins)} | set(_bound(module))
        used = {n.id for n in ast.walk(module) if isinstance(n, ast.Name)}
        calls = {
            n.attr
            for n in ast.walk(module)
            if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "extern_kernels"
        }
        for name in sorted(used - known) + sorted(calls - vars(extern_kernels).keys()):
            raise PackageError(
                f"region {self.region.key} calls {name!r} of Inductor when it runs",
                source=self.region.source,
            )
        return ast.unparse(module) + "\n"

    def statement(self, node: ast.stmt) -> Iterator[ast.stmt]:
        """The statement in the place of ``node``: itself, another one, or none."""
        if isinstance(node, ast.ImportFrom | ast.Import):
            text = ast.unparse(node)
            if not any(name in text for name in COMPILERS):
                yield node
        elif isinstance(node, ast.Assign) and "async_compile" in ast.unparse(node.targets[0]):
            return
        elif (kernel := _kernel(node)) is not None:
            assert isinstance(node, ast.Assign)
            name = f"kernels.kernel_{self.place(*kernel)}"
            yield from ast.parse(f"{ast.unparse(node.targets[0])} = {name}").body
        elif isinstance(node, ast.FunctionDef) and node.name in _UNUSED:
            return
        elif not (isinstance(node, ast.If) or "async_compile" in ast.unparse(node)):
            yield node

    def place(self, types: tuple[str, ...], source: str) -> int:
        """The number of a kernel, which is added if it is new."""
        key = types, source
        if key not in self.kernels:
            self.kernels[key] = Waiting(types, self.compiler.changed(source))
        return [*self.kernels].index(key)


_UNUSED = ("get_args", "benchmark_compiled_module")
"""Functions of generated modules that only benchmarks call."""


def _kernel(node: ast.stmt) -> tuple[tuple[str, ...], str] | None:
    """Argument types and code of the C++ kernel that ``node`` binds to a name, else None."""
    value = node.value if isinstance(node, ast.Assign) else None
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "async_compile.cpp_pybinding":
        return None
    types, source = (ast.literal_eval(argument) for argument in value.args)
    return tuple(types), source


def _bound(module: ast.Module) -> Iterator[str]:
    """All names that ``module`` binds somewhere."""
    for node in ast.walk(module):
        if isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
