"""Packages of plugins, written from templates.

A template is a file in ``templates/common`` or in the folder of its kind; its text is a
`string.Template`. Its path in the package is its path there without ``.tmpl``, with the name of the
import package for ``PACKAGE`` and ``tests`` for ``TESTS``, since no wheel of this project has a
folder of that name. The kind's ``hooks.tmpl`` becomes a part of ``plugin.py``, and its
``about.tmpl`` of ``README.md``.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from pathlib import Path
from string import Template

from tj_core.extend import TjError
from tj_core.internal import OWN_COMMANDS

__all__ = ["KINDS", "Kind", "write_plugin"]

TEMPLATES = Path(__file__).parent / "templates"

LONGEST = 24
"""Letters in a name; the lines of the templates have room for so many."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of plugin.

    ``summary`` completes "A plugin of tj that ...". ``records`` are the names of `tj_core.extend`
    that the signatures of its hooks have, ``requires`` distributions that it needs, and ``tests``
    those that only its tests need, of this project.
    """

    summary: str
    records: tuple[str, ...]
    requires: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


KINDS = {
    "executor": Kind("runs operations with its own kernels", ("Executor",), (), ("tj-autograd",)),
    "fusion": Kind("runs several operations as one", ("Executor",)),
    "transform": Kind("edits programs before they run", ("Transform",)),
    "gradient": Kind("has its own gradient of an operation", ("RuleTable",), ("tj-autograd",)),
    "subclass": Kind(
        "runs an operation on its own tensor subclass",
        ("Executor",),
        ("tj-autograd", "tj-subclass"),
    ),
    "frontend": Kind("compiles its own kind of program", ("Frontend",), (), ("tj-autograd",)),
}
"""The kinds by name, each with a folder of templates."""

TAGS = ("executor", "transform")
"""The kinds with a tag."""


def write_plugin(name: str, kind: str, into: Path, taken: Collection[str] = ()) -> Path:
    """Write the package of the plugin ``name`` to a new folder in ``into``; return the folder.

    ``taken`` are further names that no plugin can have: keys of the config, commands.

    :raises TjError: if a plugin cannot be called so, or the folder exists or cannot be written.
    """
    _check_name(name, taken)
    folder = into / f"tj-{name.replace('_', '-')}"
    texts = _texts(name, kind)
    try:
        folder.mkdir(parents=True)
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
    except FileExistsError as error:
        raise TjError(f"{folder} exists already", hint="nothing was written") from error
    except OSError as error:
        raise TjError(f"{folder} cannot be written: {error}") from error
    return folder


def _check_name(name: str, taken: Collection[str]) -> None:
    wanted = "lower-case letters, digits and single underscores, from a letter on"
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > LONGEST:
        meant = re.sub(r"[\W_]+", "_", name.removeprefix("tj-").lower()).strip("_")[:LONGEST]
        hint = f"such as {meant!r}" if meant and meant[0].isalpha() else "such as 'acme'"
        raise TjError(f"{name!r} is no name of a plugin: {wanted}, {LONGEST} at most", hint=hint)
    if keyword.iskeyword(name) or name in OWN_COMMANDS or name in taken:
        raise TjError(f"a plugin cannot be called {name!r}, which means something else to tj")
    if name in {entry.name for entry in entry_points(group="tj")}:
        raise TjError(
            f"there is a plugin {name!r} already", hint="`tj plugins --all` lists what is installed"
        )
    if importlib.util.find_spec(f"tj_{name}") is not None:
        raise TjError(f"there is a package 'tj_{name}' already")


def _texts(name: str, kind: str) -> dict[str, str]:
    """The text of each file of the package, by its path."""
    values = _values(name, kind)
    found: dict[str, str] = {}
    for folder in (TEMPLATES / "common", TEMPLATES / kind):
        for file in sorted(folder.rglob("*.tmpl")):
            path = file.relative_to(folder).as_posix().removesuffix(".tmpl")
            if path not in ("hooks", "about"):
                path = path.replace("PACKAGE", values["package"]).replace("TESTS", "tests")
                found[path] = Template(file.read_text("utf-8")).substitute(values)
    return found


def _values(name: str, kind: str) -> dict[str, str]:
    """The text for each placeholder of the templates."""
    of_kind = KINDS[kind]
    major, minor = version("tj-torch").split(".")[:2]
    span = f">={major}.{minor},<{major}.{int(minor) + 1}"
    records = {*of_kind.records, "CliCommand", *(["Tag"] if kind in TAGS else [])}
    values = {
        "name": name,
        "NAME": name.upper(),
        "Name": "".join(word.capitalize() for word in name.split("_")),
        "distribution": f"tj-{name.replace('_', '-')}",
        "package": f"tj_{name}",
        "kind": kind,
        "summary": of_kind.summary,
        "records": ", ".join(sorted(records)),
        "dependencies": _listed(("tj-core", "tj-torch", *of_kind.requires), span, '"torch>=2.10"'),
        "tests": _listed(of_kind.tests, span, '"pytest>=8"'),
    }
    for part in ("hooks", "about"):
        text = (TEMPLATES / kind / f"{part}.tmpl").read_text("utf-8")
        values[part] = Template(text).substitute(values).strip()
    return values


def _listed(distributions: tuple[str, ...], span: str, other: str) -> str:
    return ", ".join([*(f'"{d}{span}"' for d in distributions), other])
