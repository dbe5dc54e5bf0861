"""Every test outside of `examples` runs with this project's plugins, whatever else is installed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import tj_core as tj

OF_FOLDERS = {
    "autograd": "torch,autograd",
    "autocast": "torch,autograd,autocast",
    "subclass_dispatch": "torch,autograd,subclass",
}
"""The plugins of tests in folders of that name, if more than tj-torch."""

SESSIONS: dict[str, tj.Session] = {}
"""One for each list of plugins, for all files: what is remembered of calls is used again."""


def pytest_collection_finish() -> None:
    """Leave what is imported by now, PyTorch and the tests, out of all garbage collections.

    They would look at its million objects again and again, which takes a sixth of the whole run.
    """
    _freeze()
    gc.set_threshold(10_000)


def _freeze() -> None:
    gc.collect()
    gc.freeze()


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
