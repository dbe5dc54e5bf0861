"""Every test outside of `examples` runs with this project's plugins, whatever else is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def only_own_plugins(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave out the example executor, which the environment of all tests also has."""
    if not {"plugins", "tests"} & set(request.path.relative_to(request.config.rootpath).parts[:1]):
        yield  # the core's tests make their own plugins, the example's are about the example
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "TJ_PLUGINS", "torch,autograd" if "autograd" in request.path.parts else "torch"
        )
        patch.setenv("TJ_STRICT", "1")  # where tj would go on without what failed, a test fails
        patch.setattr("tj_core.host.session._current", None)
        yield
