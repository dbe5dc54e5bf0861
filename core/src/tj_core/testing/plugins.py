"""pytest fixtures for authors of plugins: fake distributions, recorded hook calls, a clean env."""

from __future__ import annotations

import os
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tj_core.host.config import Config
    from tj_core.host.hookcall import HookCall, Observer
    from tj_core.host.plugins import PluginManager

__all__ = [
    "FakeDist",
    "env_unchanged",
    "fake_dist",
    "hook_calls",
    "load_plugins",
    "only_fake_dists",
    "plugin_object",
]


class FakeDist:
    """An installer of distributions that exist only in a test: see the fixture `fake_dist`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._monkeypatch = monkeypatch
        self.names: set[str] = set()

    def __call__(
        self,
        name: str,
        source: str | None = "",
        *,
        distribution: str | None = None,
        version: str = "1.0",
        target: str | None = None,
        entry_points: Mapping[str, str] | None = None,
        requires: Iterable[str] = (),
    ) -> Path:
        """Write a distribution and put it on ``sys.path``; return its folder.

        :param name: the plugin's name; the module is ``fake_<name>``.
        :param source: the module's text, in which ``hookimpl`` and the records are
            imported; None for a distribution without a module.
        :param distribution: the distribution's name, else ``tj-<name>``.
        :param target: the entry point's value, else the module.
        :param entry_points: the entry points of group ``tj``, else one for ``name``.
        :param requires: the distribution's requirements: ``tj-core>=0.1,<0.2``.
        """
        distribution = distribution or f"tj-{name}"
        folder = self._root / f"site{len(list(self._root.iterdir()))}"
        folder.mkdir()
        module = "fake_" + name.replace("-", "_")
        if source is not None:
            (folder / f"{module}.py").write_text(_PRELUDE + textwrap.dedent(source), "utf-8")
        entries = {name: target or module} if entry_points is None else entry_points
        _write_metadata(folder, distribution, version, entries, requires)
        self.names.add(distribution)
        self._monkeypatch.syspath_prepend(str(folder))
        return folder


_PRELUDE = "from tj_core.host.hookspecs import hookimpl\nfrom tj_core.extend import *\n"


def _write_metadata(
    folder: Path, name: str, version: str, entries: Mapping[str, str], requires: Iterable[str]
) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    text += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    (info / "METADATA").write_text(text, "utf-8")
    lines = ["[tj]", *(f"{k} = {v}" for k, v in entries.items())]
    if entries:
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")


def load_plugins(
    *plugins: str | object, environ: Mapping[str, str] | None = None, **keys: object
) -> PluginManager:
    """A plugin manager for ``plugins``, names and objects; for the defaults if there are none.

    ``keys`` are config keys and tables of plugins, ``environ`` replaces the environment.
    """
    from tj_core.host.config import load_config
    from tj_core.host.plugins import PluginManager, split_plugins

    names, objects = split_plugins(plugins or None)
    overrides = keys if names is None else {**keys, "plugins": names}
    return PluginManager(load_config(overrides=overrides, environ=environ or {}), objects)


def plugin_object(name: str, /, **hooks: object) -> types.SimpleNamespace:
    """A plugin object called ``name`` whose hooks return the given values."""
    made = types.SimpleNamespace(tj_name=name)
    for hook, value in hooks.items():
        setattr(made, hook, _constant(hook, value))
    return made


def _constant(hook: str, value: object) -> Callable[[], object]:
    from tj_core.host.hookspecs import hookimpl

    def implementation() -> object:
        return value

    marked: Any = hookimpl(implementation, specname=hook)
    return marked  # type: ignore[no-any-return]


@pytest.fixture
def fake_dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDist]:
    """A function that installs a fake distribution for the time of the test."""
    before = set(sys.modules)
    root = tmp_path / "fake_dists"
    root.mkdir()
    yield FakeDist(root, monkeypatch)
    # Another test's distribution of the same name must be imported, and not found here.
    for name in [n for n in sys.modules if n not in before and n.startswith("fake_")]:
        del sys.modules[name]


@pytest.fixture
def only_fake_dists(fake_dist: FakeDist, monkeypatch: pytest.MonkeyPatch) -> FakeDist:
    """`fake_dist`, with all really installed plugins hidden."""
    from tj_core.host import discovery

    real = discovery._entry_points

    def visible() -> list[object]:
        return [e for e in real() if e.dist is not None and e.dist.name in fake_dist.names]

    monkeypatch.setattr(discovery, "_entry_points", visible)
    return fake_dist


@pytest.fixture
def env_unchanged() -> Iterator[None]:
    """Fail the test if it leaves ``os.environ`` changed."""
    before = _environment()
    yield
    after = _environment()
    changed = sorted(k for k in before | after if before.get(k) != after.get(k))
    assert not changed, f"the test changed the environment: {', '.join(changed)}"


@pytest.fixture
def hook_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The hook calls of the test so far, each as plugin and hook."""
    from tj_core.host import plugins

    calls: list[tuple[str, str]] = []
    original = plugins.default_observers

    def record(call: HookCall) -> None:
        calls.append((call.plugin, call.hook))

    def observers(config: Config) -> tuple[Observer, ...]:
        return (record, *original(config))

    monkeypatch.setattr(plugins, "default_observers", observers)
    return calls


def _environment() -> dict[str, str]:
    # pytest sets this one itself, anew for each phase of a test.
    return {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
