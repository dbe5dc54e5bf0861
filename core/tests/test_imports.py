"""The modules and the time that importing tj takes, and the layout of its sources."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tj_core

ROOT = Path(tj_core.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def python(code):
    """The output of ``code`` in a fresh process."""
    path = f"import sys; sys.path.insert(0, {str(ROOT.parent)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", path + code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def modules(code):
    """The modules that ``code`` loads."""
    text = "before = set(sys.modules)\n{}\nprint(*(set(sys.modules) - before))"
    return set(python(text.format(code)).split())


def test_importing_discovers_nothing():
    loaded = modules("import tj_core")
    assert loaded.isdisjoint({"importlib_metadata", "importlib.metadata", "pluggy", "rich"})
    assert {m for m in loaded if m.startswith("tj_")} == {"tj_core"}


@pytest.mark.parametrize(
    "code", ["from tj_core import *", "import tj_core.extend", "import tj_core.cli.main"]
)
def test_nothing_imports_torch(code):
    loaded = modules(code)
    assert not {m for m in loaded if m.split(".")[0] in ("torch", "tj_torch", "numpy")}


def test_a_session_imports_no_torch_by_itself():
    code = "import tj_core\ntj_core.Session(plugins=[])"
    assert "torch" not in {m.split(".")[0] for m in modules(code)}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_every_module_is_small_and_says_what_it_is_for(file):
    text = file.read_text("utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 500
    assert ast.get_docstring(tree)
    if file.name == "__main__.py" or (file.name == "__init__.py" and file.parent != ROOT):
        return  # a folder says what it holds, and exports nothing
    named = [
        n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
    ]
    assert len(named) == 1
    public = ast.literal_eval(named[0].value)
    defined = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    defined |= {n.name for n in tree.body if hasattr(n, "name")}
    defined |= {
        a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names
    }
    assert set(public) <= defined


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_no_module_imports_torch_or_a_plugin(file):
    tree = ast.parse(file.read_text("utf-8"))
    found = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    found |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in found}
    assert "torch" not in roots
    assert not {r for r in roots if re.fullmatch(r"tj_(?!core$)\w+", r)}


PLUGINS = (
    "tj_torch|tj_autograd|tj_autocast|tj_subclass|tj_distributed|tj_inductor|tj_onednn|"
    "tj_nvfuser|tj_cudagraph|tj_report"
)


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_the_core_names_no_plugin(file):
    """Hints name distributions in text for people only; the code looks up no name."""
    tree = ast.parse(file.read_text("utf-8"))
    words = [
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
    assert not [w for w in (*words, *names) if re.search(rf"\b({PLUGINS})\b", w)]
