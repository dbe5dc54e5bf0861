"""Rooms: the folders of each package and the modules beside them. Imports go to lower rooms only.

The rooms of a large room are the folders in it and the modules beside them.

Read off the sources: imports inside of functions and those for type checkers count as well.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import networkx
import pytest

if TYPE_CHECKING:
    from pathlib import Path

Distributions = Any

ROOMS = {
    "tj_core": (
        "source", "showing", "errors", "disk_locks", "disk", "deprecations", "ir", "contract",
        "text", "analysis", "edit", "verify", "passes", "compile", "host", "namespaces", "tagging",
        "api", "packages", "looking", "cli", "extend", "internal", "testing", "__main__",
    ),
    "tj_torch": (
        "installation", "torch_private", "runtime", "ops", "guards", "eager", "functionalize",
        "glue", "capture", "dispatch", "package", "backend", "extend", "internal", "demo", "doctor",
        "differences", "layer_outputs", "new_plugin", "plugin",
    ),
    "tj_torch.ops": (
        "errors", "fakes", "sizes", "values", "naming", "context", "settings", "facts", "expansion",
        "memo", "dialect", "service",
    ),
    "tj_autograd": ("options", "joint", "split", "run", "transform", "extend", "plugin"),
    "tj_autocast": (
        "probe", "notes", "policies", "inside", "casts", "cast_cache", "bodies", "transform",
        "plugin",
    ),
    "tj_subclass": ("expansion", "writes", "kind", "joining", "transform", "plugin"),
    "tj_distributed": (
        "options", "wrappers", "names", "adapter", "sequence", "facts", "agreement", "waits",
        "groups", "schedule", "transform", "buckets", "overlap", "merge", "redistributions",
        "sharding_checks",
        "accumulation", "sharding", "probes", "testing", "plugin",
    ),
    "tj_inductor": (
        "options", "opening", "arithmetic", "mixed", "sums", "moves", "bags", "pools",
        "activations", "norms",
        "formulas", "texts", "thrown", "branches", "elementary", "loads", "constants", "loops",
        "adapter", "kernels", "draws", "trials", "joined", "operators", "numbers", "packed",
        "counted", "lists", "alone", "decompositions", "graph", "repeated",
        "lowering", "variants", "compiler", "packaging", "executor", "probes", "doctor", "plugin",
    ),
    "tj_onednn": (
        "options", "availability", "timing", "store", "names", "adapter", "operators", "kernels",
        "packing", "operands", "layers", "choice", "epilogues", "executor", "freezing", "int8",
        "probes", "plugin",
    ),
    "tj_nvfuser": (
        "options", "availability", "refusal", "draws", "layouts", "definition", "operations",
        "translate", "bindings", "operators", "runs", "executor", "random", "testing",
        "plugin",
    ),
    "tj_cudagraph": (
        "options", "device", "names", "adapter", "memory", "segment", "waits", "plan", "transform",
        "dialect", "testing", "plugin",
    ),
    "tj_report": ("memory", "timeline", "data", "page", "command", "plugin"),
    "tj_conformance": (
        "options", "suites", "sampling", "seeds", "output", "chunks", "fuser", "oracle",
        "programs", "names", "meaning", "databases", "models", "gradients", "ways", "states",
        "data", "dtypes", "executor", "sweep", "installed", "plugin",
    ),
}  # fmt: skip
"""The rooms of each package, and of large rooms, the lowest first."""

PUBLIC = {"extend", "internal", "testing", "backend", "installation"}
"""The modules that others may import from: both doors, fixtures for tests, the backend, and facts
of the installed PyTorch without importing it."""


def modules(distribution: Any) -> dict[str, Path]:
    """The modules of a package by dotted name, without the package's own."""
    found = {}
    for file in distribution.files:
        parts = [*file.relative_to(distribution.source).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = file
    return found


@dataclass
class Facts:
    """Facts of a file for these tests, read once.

    ``imported`` are dotted names, of ``from a import b`` both ``a`` and ``a.b``; ``called`` the
    names of functions; ``made`` and ``looked_up`` lines that make a trace, or a copy of one with
    changes, and lines with ``values.get(p.name, p)``.
    """

    docstring: str | None
    imported: list[str] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    made: list[int] = field(default_factory=list)
    looked_up: list[int] = field(default_factory=list)

    def add(self, node: ast.AST) -> None:
        """Note what a node of the file says."""
        if isinstance(node, ast.Import):
            self.imported += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            self.imported.append(node.module)
            self.imported += (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            self.add_call(node)

    def add_call(self, node: ast.Call) -> None:
        """Note what a call says."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if isinstance(node.func, ast.Name):
            self.called.add(name)
        changed = {keyword.arg for keyword in node.keywords}
        if name == "Trace" or (name == "replace" and OF_TRACES & changed):
            self.made.append(node.lineno)
        if name == "get" and len(node.args) == 2:
            first, second = map(ast.unparse, node.args)
            if first == f"{second}.name":
                self.looked_up.append(node.lineno)


@functools.cache
def facts(file: Path) -> Facts:
    """The facts of ``file``."""
    tree = ast.parse(file.read_text("utf-8"), str(file))
    found = Facts(ast.get_docstring(tree))
    for node in ast.walk(tree):
        found.add(node)
    return found


def arrows(distribution: Any) -> Iterator[tuple[str, str]]:
    """The imports between modules of one package."""
    own = modules(distribution)
    for name, file in own.items():
        for target in facts(file).imported:
            package, _, rest = target.partition(".")
            if package == distribution.package and rest in own and rest != name:
                yield name, rest


PACKAGES = [name for name in ROOMS if "." not in name]


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_down(distributions: Distributions, room: str) -> None:
    package, _, inner = room.partition(".")
    distribution = distributions[package.replace("_", "-")]
    rank = {name: i for i, name in enumerate(ROOMS[room])}
    rooms = {found for name in modules(distribution) if (found := part_of(name, inner))}
    assert rooms == set(rank), "every room has its place in the order, and every place a room"
    pairs = [(a, b, part_of(a, inner), part_of(b, inner)) for a, b in arrows(distribution)]
    assert [(a, b) for a, b, x, y in pairs if x and y and rank[x] < rank[y]] == []


def part_of(module: str, folder: str) -> str | None:
    """Name of the folder or module right below ``folder`` that ``module`` is in, or is."""
    prefix = f"{folder}." if folder else ""
    return module.removeprefix(prefix).partition(".")[0] if module.startswith(prefix) else None


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circle_of_files(distributions: Distributions, package: str) -> None:
    graph = networkx.DiGraph(arrows(distributions[package.replace("_", "-")]))
    assert circles(graph) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circle_of_folders(distributions: Distributions, package: str) -> None:
    """In each folder, the imports between the folders and modules right below have no circle."""
    distribution = distributions[package.replace("_", "-")]
    pairs = [*arrows(distribution)]
    names = modules(distribution)
    folders = {name.rpartition(".")[0] for name in names}
    found = {}
    for folder in folders:
        parts = [(part_of(a, folder), part_of(b, folder)) for a, b in pairs]
        graph = networkx.DiGraph((x, y) for x, y in parts if x and y and x != y)
        found[folder] = circles(graph)
    assert {folder: names for folder, names in found.items() if names} == {}


def circles(graph: networkx.DiGraph[str]) -> list[list[str]]:
    """The nodes of each circle in ``graph``."""
    components = networkx.strongly_connected_components(graph)
    return [sorted(nodes) for nodes in components if len(nodes) > 1]


def test_other_distributions_are_imported_through_their_door(distributions: Distributions) -> None:
    packages = {d.package for d in distributions.values()}
    wrong = [
        f"{file}: {target}"
        for distribution in distributions.values()
        for file in distribution.files
        for target in facts(file).imported
        if (parts := target.split("."))[0] in packages - {distribution.package}
        and len(parts) > 1
        and parts[1] not in PUBLIC
        and not (parts[0] == "tj_core" and len(parts) == 2)  # `from tj_core import jit`
    ]
    assert wrong == []


def test_the_second_door_is_for_plugins_of_this_tree(distributions: Distributions) -> None:
    doors = {f"{d.package}.internal" for d in distributions.values()}
    users: dict[str, set[str]] = {}
    for distribution in distributions.values():
        for file in distribution.files:
            for door in doors.intersection(facts(file).imported):
                users.setdefault(door, set()).add(distribution.folder.parent.name)
    assert users == {"tj_core.internal": {"plugins"}, "tj_torch.internal": {"plugins"}}


def exported(file: Path) -> list[str]:
    """The names in ``__all__`` of ``file``."""
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def users_of(door: str, distributions: Distributions) -> dict[str, set[str]]:
    """Distributions by the names that they import from ``door``."""
    users: dict[str, set[str]] = {}
    for distribution in distributions.values():
        for file in distribution.files:
            for target in facts(file).imported:
                module, _, name = target.rpartition(".")
                if module == door:
                    users.setdefault(name, set()).add(distribution.name)
    return users


@pytest.mark.parametrize("name", ["tj-core", "tj-torch"])
def test_the_second_door_has_names_that_one_plugin_needs(
    distributions: Distributions, name: str
) -> None:
    distribution = distributions[name]
    users = users_of(f"{distribution.package}.internal", distributions)
    assert sorted(users) == sorted(exported(distribution.source / "internal.py"))
    assert {name: found for name, found in users.items() if len(found) > 1} == {}
    assert users.keys().isdisjoint(exported(distribution.source / "extend.py"))


UNUSED = {
    "AliasFacts": "what alias_facts returns",
    "Change": "in a PassRecord",
    "Fallback": "what a frontend makes",
    "OVERWRITES": "a table of rules, as is REFUSES",
    "Overwrites": "the type of its rules",
    "PLUGIN_API": "the number that a plugin declares",
    "Program": "what generate returns",
    "REFUSES": "a table of rules",
    "Refuses": "the type of its rules",
    "RewriteRule": "what rewrite takes",
    "Services": "what a session gives to frontends",
    "Source": "in a BoundSymbol",
    "reproduce": "for the scripts that failed regions leave",
}
"""Names of `tj_core.extend` that fewer than two plugins need, with what they belong to."""


def test_the_first_door_has_names_that_plugins_need(
    distributions: Distributions, root: Path
) -> None:
    """Two plugins of this tree or an example do, the documentation has it, or it is an error."""
    users = users_of("tj_core.extend", distributions)
    complete = ("api.md", "modules.md", "reference.md")
    pages = [p for p in root.glob("docs/*.md") if p.name not in complete]
    words = set(re.findall(r"\w+", " ".join(p.read_text("utf-8") for p in pages)))
    examples = {d.name for d in distributions.values() if d.folder.parent.name == "examples"}
    left = {
        name
        for name in exported(distributions["tj-core"].source / "extend.py")
        if len(users.get(name, ())) < 2
        and not users.get(name, set()) & examples
        and name not in words
        and not name.endswith(("Error", "Warning"))
    }
    assert left == set(UNUSED)


def test_no_folder_beside_a_module_of_its_name(distributions: Distributions) -> None:
    files = [f for d in distributions.values() for f in d.files]
    assert [f for f in files if f.with_suffix("").is_dir()] == []


def test_each_room_says_what_it_holds(distributions: Distributions) -> None:
    rooms = [f for d in distributions.values() for f in d.files if f.name == "__init__.py"]
    assert [f for f in rooms if not facts(f).docstring] == []


BUILDERS = (
    "tj_core/edit/", "tj_core/ir/", "tj_core/text/parser.py", "tj_core/text/encoding.py",
    "tj_torch/capture/",
    "tj_core/testing/",  # builds programs for tests
)  # fmt: skip
"""Where traces are made: in the editor, by capture, and where text is read."""

OF_TRACES = frozenset({"calls", "inputs", "stage", "history"})
"""Attributes of traces that calls do not have."""


def test_traces_are_made_in_the_editor_by_capture_and_by_the_parser(
    distributions: Distributions,
) -> None:
    files = {f.relative_to(d.source.parent): f for d in distributions.values() for f in d.files}
    made = {str(name): facts(file).made for name, file in files.items()}
    assert made["tj_core/edit/editor.py"], "it finds them"
    assert made["tj_core/text/parser.py"], "it finds them"
    assert {n: lines for n, lines in made.items() if lines and not n.startswith(BUILDERS)} == {}


def test_source_becomes_functions_in_one_place(distributions: Distributions) -> None:
    """`define` compiles generated functions, so that tracebacks show their text; four evaluate."""
    found = set()
    for distribution in distributions.values():
        if distribution.package not in ("tj_core", "tj_torch", "tj_autograd"):
            continue
        for name, file in modules(distribution).items():
            if {"exec", "eval"} & facts(file).called:
                found.add(name)
    probes = "capture.eager_probe"  # each is a program as text
    inputs = "cli.inputs"  # the user's own text
    made = {"compile.function_text", "text.language", "ops.context.entering"}
    assert found == {*made, probes, inputs}


def test_values_are_substituted_in_one_place(distributions: Distributions) -> None:
    files = {f.relative_to(d.source.parent): f for d in distributions.values() for f in d.files}
    found = {str(name) for name, file in files.items() if facts(file).looked_up}
    assert found == {"tj_core/ir/substitution.py"}
