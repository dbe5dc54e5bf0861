"""The documentation is true: its examples run, print what the page says, and leave no name out.

Every block marked ``python`` runs, in order, in one namespace per page; ``python no-run`` is left
out. A block marked ``text output`` is what the block before it prints. A block that begins with a
comment like ``# model.py`` is a file of that name, so that source lines in printed traces do not
depend on where in the page it stands.

``python tests/test_docs.py`` writes the output blocks of all pages anew.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import itertools
import os
import re
import runpy
import sys
import types
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
BLOCK = re.compile(r"^```(python|text output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_serial = itertools.count()
NEEDED = {
    "autocast.md": "tj_autocast",
    "cudagraph.md": "tj_cudagraph",
    "looking.md": "tj_report",
    "nvfuser.md": "tj_nvfuser",
    "packages.md": "tj_autograd",
    "subclasses.md": "tj_subclass",
}
"""The plugins that pages are about, where the other pages do without."""
FILE = re.compile(r"# ([\w/]+\.py)\n")


class Block(NamedTuple):
    """A block that runs, or what one prints: kind, line, text, and where the text stands."""

    kind: str
    line: int
    text: str
    start: int
    end: int


def blocks(page: str) -> Iterator[Block]:
    """The blocks of ``page`` that run, and the outputs."""
    for match in BLOCK.finditer(page):
        line = page.count("\n", 0, match.start(2)) + 1
        yield Block(match[1], line, match[2], match.start(2), match.end(2))


def rendered(path: Path, folder: Path) -> str:
    """The page with every output block as it should be; runs its examples in ``folder``."""
    page = path.read_text("utf-8")
    parts: list[str] = []
    done, printed = 0, ""
    with a_fresh_process(folder) as namespace:
        for block in blocks(page):
            parts.append(page[done : block.start])
            done = block.start
            if block.kind == "python":
                printed = run(block, path, folder, namespace)
            else:
                assert printed, f"{path.name}:{block.line}: the block before prints nothing"
                parts.append(printed)
                done = block.end
    return "".join([*parts, page[done:]])


def run(block: Block, path: Path, folder: Path, namespace: dict[str, Any]) -> str:
    """Run a block and return its output."""
    code, file = "\n" * (block.line - 1) + block.text, str(path)
    if match := FILE.match(block.text):
        saved = folder / match[1]
        saved.parent.mkdir(parents=True, exist_ok=True)
        saved.write_text(block.text, "utf-8")
        code, file = block.text, str(saved)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, file, "exec"), namespace)
    lines = printed.getvalue().rstrip().splitlines()
    return "".join(line.rstrip() + "\n" for line in lines)


@contextlib.contextmanager
def a_fresh_process(folder: Path) -> Iterator[dict[str, Any]]:
    """A module's namespace, a blank project in ``folder``, and no session yet."""
    from tj_core.host import session

    (folder / "pyproject.toml").write_text("[tool.tj]\n", "utf-8")
    module = types.ModuleType(f"page{next(_serial)}")  # Dynamo remembers modules by name
    with pytest.MonkeyPatch.context() as patch:
        for key in [k for k in os.environ if k.startswith("TJ_")]:
            patch.delenv(key)
        patch.setenv("TJ_CONFIG", str(folder / "pyproject.toml"))
        patch.setenv("TJ_CHECK", "2")
        patch.setattr(session, "_current", None)
        patch.setitem(sys.modules, module.__name__, module)  # dataclasses and pickle look there
        patch.chdir(folder)
        yield vars(module)


# The example of the first page runs wherever a share of the tests does.
RUN = [
    pytest.param(p, id=p.name, marks=[pytest.mark.probe] if p.parent == ROOT else []) for p in PAGES
]


@pytest.mark.parametrize("path", RUN)
def test_the_examples_run_and_print_what_the_page_says(path: Path, tmp_path: Path) -> None:
    page = path.read_text("utf-8")
    if re.search(r"^import torch\b", page, re.MULTILINE):
        pytest.importorskip("torch")
    pytest.importorskip(NEEDED.get(path.name, "tj_core"))
    printed = rendered(path, tmp_path)
    if path.name == "capture.md" and _version("torch") >= (2, 15):
        return  # PyTorch has more guards, which the page prints
    assert printed == page, "python tests/test_docs.py writes the output anew"


def _version(name: str) -> tuple[int, ...]:
    return tuple(map(int, metadata.version(name).split(".")[:2]))


def test_blocks_are_found() -> None:
    page = (
        "a\n```python\nx = 1\n```\n```python no-run\ny\n```\n```toml\nz\n```\n"
        "```python\nu\n```\n```text output\nv\n```\n```text\nw\n```\n"
    )
    found = [(b.kind, b.line, b.text) for b in blocks(page)]
    assert found == [("python", 3, "x = 1\n"), ("python", 12, "u\n"), ("text output", 15, "v\n")]


def test_output_is_compared(tmp_path: Path) -> None:
    page = "```python\nprint(1 + 1)\n```\n\n```text output\n{}\n```\n"
    path = tmp_path / "page.md"
    path.write_text(page.format(3), "utf-8")
    assert rendered(path, tmp_path) == page.format(2)


# ------------------------------------------------------------------------------- completeness


def public_names() -> dict[str, Any]:
    """Exports of `tj_core` and `tj_core.extend`."""
    import tj_core
    import tj_core.extend

    pairs = [(tj_core, name) for name in tj_core.__all__]
    pairs += [(tj_core.extend, name) for name in tj_core.extend.__all__]
    return {name: getattr(module, name) for module, name in pairs}


DEFINED = re.compile(r"^(?:#+ |\| )`(?:tj\.)?(\w+)(?:\((.*?)\))?`", re.MULTILINE)


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    assert [p.name for p in DOCS.glob("*.md") if f"({p.name})" not in index] == ["README.md"]


def test_every_public_name_is_in_the_api_page() -> None:
    described = {m[1] for m in DEFINED.finditer((DOCS / "api.md").read_text("utf-8"))}
    assert sorted(public_names().keys() - described) == []


def test_the_signatures_in_the_api_page_are_true() -> None:
    names = public_names()
    wrong = {}
    for match in DEFINED.finditer((DOCS / "api.md").read_text("utf-8")):
        name, said = match[1], match[2]
        if name in names and said is not None and parameters_of(said) != actual(names[name]):
            wrong[name] = f"({', '.join(actual(names[name]))})"
    assert wrong == {}


def parameters_of(text: str) -> list[str]:
    """``["a", "/", "b=", "*", "c="]`` for ``a, /, b=1, *, c=2``: names, and which have defaults."""
    tree = ast.parse(f"def f({text}): pass").body[0]
    assert isinstance(tree, ast.FunctionDef)
    scope: dict[str, Any] = {}
    for node in ast.walk(tree.args):  # defaults count by being there
        if isinstance(node, ast.arguments):
            node.defaults = [ast.Constant(0) for _ in node.defaults]
            node.kw_defaults = [d and ast.Constant(0) for d in node.kw_defaults]
    exec(compile(ast.fix_missing_locations(ast.Module([tree], [])), "<page>", "exec"), scope)
    return actual(scope["f"])


def actual(thing: Any) -> list[str]:
    """The same for what the name stands for."""
    signature = inspect.signature(thing)
    bare = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else 0)
        for p in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return [part.strip().replace("=0", "=") for part in text.strip("()").split(",") if part]


def test_every_hook_is_in_the_plugins_page() -> None:
    from tj_core.host import hookspecs

    page = (DOCS / "plugins.md").read_text("utf-8")
    hooks = [name for name in vars(hookspecs) if name.startswith("tj_")]
    assert hooks
    missing = []
    for name in hooks:
        parameters = ", ".join(inspect.signature(getattr(hookspecs, name)).parameters)
        if f"\n### `{name}({parameters})`\n" not in page:
            missing.append(f"{name}({parameters})")
    assert missing == []


def test_every_config_key_is_in_the_plugins_page() -> None:
    from tj_core.host.config import CORE_KEYS

    page = (DOCS / "plugins.md").read_text("utf-8")
    assert [key for key in CORE_KEYS if f"\n| `{key}` |" not in page] == []


def test_every_built_in_tag_is_in_the_tags_page() -> None:
    from tj_core.ir.tags import BUILTIN_TAGS

    page = (DOCS / "tags.md").read_text("utf-8")
    assert [t.name for t in BUILTIN_TAGS if f"\n| `{t.name}` |" not in page] == []


SOURCES = {
    "tj-core": "core/src/tj_core",
    "tj-torch": "plugins/torch_exec/src/tj_torch",
    "tj-autograd": "plugins/autograd/src/tj_autograd",
    "tj-autocast": "plugins/autocast/src/tj_autocast",
    "tj-subclass": "plugins/subclass_dispatch/src/tj_subclass",
    "tj-distributed": "plugins/distributed/src/tj_distributed",
    "tj-inductor": "plugins/inductor_exec/src/tj_inductor",
    "tj-onednn": "plugins/onednn_exec/src/tj_onednn",
    "tj-nvfuser": "plugins/nvfuser_exec/src/tj_nvfuser",
    "tj-cudagraph": "plugins/cudagraph_transform/src/tj_cudagraph",
    "tj-report": "plugins/report/src/tj_report",
    "tj-conformance": "plugins/conformance/src/tj_conformance",
}


def modules_page() -> str:
    """Every module of ours with the first sentence of its docstring."""
    parts = [
        "# Modules\n\nEvery file, and what it is for. Written by `python tests/test_docs.py`.\n"
    ]
    for name, folder in SOURCES.items():
        parts.append(f"\n## {name}: `{folder}/`\n\n| file | |\n|---|---|\n")
        for file in sorted((ROOT / folder).rglob("*.py")):
            said = ast.get_docstring(ast.parse(file.read_text("utf-8")))
            if said and file.name != "__main__.py":
                first = (
                    said.split("\n\n")[0].replace("\n", " ").replace("``", "`").replace("|", "\\|")
                )
                parts.append(f"| `{file.relative_to(ROOT / folder).as_posix()}` | {first} |\n")
    return "".join(parts)


def test_the_modules_page_is_complete() -> None:
    page = (DOCS / "modules.md").read_text("utf-8")
    assert page == modules_page(), "python tests/test_docs.py writes it anew"


TOPS = "core|plugins|tests|examples|docs|benchmarks|scripts"
NAMED_PATH = re.compile(
    rf"`((?:{TOPS})/[\w./-]+|[\w.-]+(?:/[\w.-]+)*(?:/|\.py))`|\]\(([\w./-]+)(?:#[\w.-]*)?\)"
)
"""A file or folder: it ends with a slash, or is Python, or is in a folder of ours; or a link."""

NAMED_FUNCTION = re.compile(r"`([\w.]+)`\s+\(`(\w+/[\w/]+\.py)`\)")
"""A function or class, with its file after it."""

OTHERS = ("test/", "dynamo/", "functorch/", "test_")
"""Beginnings of paths in PyTorch's sources, or in the folder that was named last."""


def places(path: str) -> list[Path]:
    """Files that ``path`` may name: from the root, from a folder of sources, from a package."""
    sources = [ROOT / folder for folder in SOURCES.values()]
    folders = [ROOT, *(s.parent for s in sources), *sources]
    return [folder / path for folder in folders if (folder / path).exists()]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_files_that_a_page_names_exist(path: Path) -> None:
    found = list(NAMED_PATH.finditer(path.read_text("utf-8")))
    named = {m[1] for m in found if m[1] and "/" in m[1] and not m[1].startswith(OTHERS)}
    links = {m[2] for m in found if m[2]}
    assert sorted(n for n in named if not places(n)) == []
    assert sorted(link for link in links if not (path.parent / link).exists()) == []


def test_tests_that_the_readme_names_exist() -> None:
    named = re.findall(r"`(test_\w+\.py)`", (ROOT / "README.md").read_text("utf-8"))
    files = {f.name for top in ("tests", "plugins") for f in (ROOT / top).rglob("test_*.py")}
    assert named
    assert not set(named) - files


@pytest.mark.parametrize("path", ["architecture.md", "one-gradient-rule.md"])
def test_functions_that_a_page_names_are_where_it_says(path: str) -> None:
    page = (DOCS / path).read_text("utf-8")
    named = [(m[1], m[2]) for m in NAMED_FUNCTION.finditer(page)]
    assert len(named) > 10, "it finds them"
    wrong = []
    for name, file in named:
        (found,) = places(file)
        nodes = ast.walk(ast.parse(found.read_text("utf-8")))
        kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
        defined = {node.name for node in nodes if isinstance(node, kinds)}
        if not defined.issuperset(name.split(".")):
            wrong.append(f"{name} is not in {file}")
    assert wrong == []


@pytest.mark.parametrize(("start", "most"), [("From `tj.jit", 12), ("A second call:", 6)])
def test_a_newcomers_path_is_short(start: str, most: int) -> None:
    page = (DOCS / "architecture.md").read_text("utf-8")
    after = page[page.index(start) :].partition("\n\n")[2].partition("\n\n")[0]
    steps = re.findall(r"^\d+\. ", after, re.MULTILINE)
    assert 0 < len(steps) <= most


def test_the_architecture_page_is_short() -> None:
    assert len((DOCS / "architecture.md").read_text("utf-8").splitlines()) <= 350


def main() -> None:
    """Write the output blocks of all pages anew."""
    import tempfile

    (DOCS / "modules.md").write_text(modules_page(), "utf-8")
    reference = runpy.run_path(str(ROOT / "scripts" / "site" / "reference.py"))
    (DOCS / "reference.md").write_text(reference["page"](), "utf-8")
    for path in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            new = rendered(path, Path(folder))
        if new != path.read_text("utf-8"):
            path.write_text(new, "utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
