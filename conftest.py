"""Every test outside of `examples` runs with this project's plugins, whatever else is installed."""

from __future__ import annotations

import gc
import os
import sys
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import tj_core as tj

if TYPE_CHECKING:
    from pathlib import Path

OF_FOLDERS = {
    "autograd": "torch,autograd",
    "autocast": "torch,autograd,autocast",
    "subclass_dispatch": "torch,autograd,subclass",
    "distributed": "torch,autograd,subclass,distributed",
    "subclasses": "torch,subclass",
    "test_composability.py": "torch,subclass,distributed",
}
"""The plugins of tests in folders and files of that name, if more than tj-torch."""

os.environ.setdefault("TJ_CACHE_DIR", "none")
"""What earlier runs of the tests have compiled is not used; tests of that have folders."""

os.environ.setdefault("TJ_FULLGRAPH", "0")
"""Strict sessions let graphs break: tests of graph breaks are of what happens then."""

SAMPLE = int(os.environ.get("TJ_SAMPLE", "0"))

SHARE = int(os.environ.get("TJ_ONE_IN", "1"))
"""Of all tests that would run, one in so many does: for runs on other versions of PyTorch."""

COARSER = 4
"""Of tests marked ``sampled(n)``, the default run takes one in this number times ``n``."""

SLOW = 240
"""Of the tests marked ``slow``, the default run takes one in so many."""

DEVICE = os.environ.get("TJ_DEVICE")

SESSIONS: dict[str, tj.Session] = {}
"""One for each list of plugins, for all files: what is remembered of calls is used again."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each function marked ``sampled(n)``, and of all ``slow`` tests, run a share.

    The shares are those of `COARSER` and `SLOW`, one test at least; where ``TJ_ONE_IN`` takes a
    share, all probes. Hashes of names choose, and ``TJ_SAMPLE=1``, ``2`` and so on choose others.
    All run with ``TJ_FULL=1``, with ``-k``, and of files that the command line names.
    """
    if config.option.keyword or os.environ.get("TJ_FULL") == "1":
        return
    wholly = _named_files(config)
    kept = [item for item in items if item.path not in wholly]
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in kept:
        if item.get_closest_marker("sampled"):
            functions[item.nodeid.partition("[")[0]].append(item)
    left_out = {item for tests in functions.values() for item in _left_out(tests, _share(tests[0]))}
    slow = [item for item in kept if item.get_closest_marker("slow") and item not in left_out]
    left_out |= set(_left_out(slow, SLOW))
    if SHARE > 1:
        probes = {item for item in kept if item.get_closest_marker("probe")}
        rest = [item for item in kept if item not in left_out | probes]
        left_out = (left_out | set(_left_out(rest, SHARE))) - probes
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _named_files(config: pytest.Config) -> set[Path]:
    """Files, whole or single tests of them, that the command line names."""
    paths = (argument.partition("::")[0] for argument in config.args)
    return {(config.invocation_params.dir / p).resolve() for p in paths if p.endswith(".py")}


def _share(test: pytest.Item) -> int:
    marker = test.get_closest_marker("sampled")
    assert marker is not None
    return COARSER * int(marker.args[0])


def _left_out(tests: list[pytest.Item], share: int) -> list[pytest.Item]:
    at = {item: zlib.crc32(item.nodeid.encode()) + SAMPLE for item in tests}
    return sorted(tests, key=lambda item: (at[item] % share > 0, at[item]))[
        max(1, sum(n % share == 0 for n in at.values())) :
    ]


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Let each file make the same tensors when it is imported; see `seeded`."""
    if isinstance(collector, pytest.Module):
        _seed()


def pytest_collection_finish() -> None:
    """Leave what is imported by now, PyTorch and the tests, out of all garbage collections.

    They would look at its million objects again and again, which takes a sixth of the whole run.
    """
    _freeze()
    gc.set_threshold(10_000)


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Draw the same random numbers whichever tests ran before, in this process or in another."""
    _seed()


def _seed() -> None:
    if "torch" in sys.modules:
        from tj_conformance.oracle.device import seed  # installed wherever tests use PyTorch

        seed(0)


@pytest.fixture
def forgotten() -> None:
    """Reset torch.compile, which takes functions of one code for one function."""
    import torch

    torch._dynamo.reset()


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what fails inside tj fall back with a warning, as by default."""
    monkeypatch.setenv("TJ_STRICT", "0")


@pytest.fixture(autouse=True)
def on_device() -> Iterator[None]:
    """Make tensors on the device that ``TJ_DEVICE`` names, where tests name none."""
    if DEVICE is None:
        yield
        return
    import torch

    with torch.device(DEVICE):
        yield
    if DEVICE == "cuda":
        try:
            torch.cuda.synchronize()
        except RuntimeError:  # a device-side assertion: no later test of this process could run
            os._exit(70)


@pytest.fixture(autouse=True)
def state_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """See that no capture leaves the thread's state changed, whatever the test is about.

    It is set back all the same. What PyTorch is known to leave, ``leaves_changed`` names.
    """
    state = sys.modules.get("tj_torch.runtime.thread_state")
    if state is None:
        yield
        return
    found: set[str] = set()
    marker = request.node.get_closest_marker("leaves_changed")

    def note(names: tuple[str, ...]) -> None:
        if threading.active_count() == 1:  # else others may draw random numbers, say
            found.update(names)

    with state.observe(note):
        yield
    assert found <= set(marker.args if marker else ()), "a capture has left this changed"


@pytest.fixture(autouse=True, scope="module")
def frozen_before() -> None:
    """Leave what earlier files keep out of garbage collections, too.

    Tests of lifetimes collect garbage hundreds of times, and each would look at all of it.
    """
    _freeze()


@pytest.fixture(autouse=True, scope="module")
def only_own_plugins(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave out the example executor, which the environment of all tests also has."""
    if not {"plugins", "tests"} & set(request.path.relative_to(request.config.rootpath).parts[:1]):
        yield  # the core's tests make their own plugins, the example's are about the example
        return
    with pytest.MonkeyPatch.context() as patch:
        plugins = next((p for f, p in OF_FOLDERS.items() if f in request.path.parts), "torch")
        patch.setenv("TJ_PLUGINS", plugins)
        patch.setenv("TJ_STRICT", "1")  # where tj would go on without what failed, a test fails
        if plugins not in SESSIONS:
            SESSIONS[plugins] = tj.Session()
        patch.setattr("tj_core.host.session._current", SESSIONS[plugins])
        yield


@pytest.fixture
def switching() -> Iterator[None]:
    """Python switches between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
