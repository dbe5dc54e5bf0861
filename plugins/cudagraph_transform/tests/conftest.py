"""Sessions with the recorder in place of CUDA's graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
from tj_cudagraph.testing.plugin import RecorderPlugin

if TYPE_CHECKING:
    from tj_cudagraph.testing.recorder import Recorder


@dataclass
class Graphed:
    """A session; ``recorder`` counts what is captured and replayed in it."""

    session: tj.Session
    recorder: Recorder

    def jit(self, f: Any, **more: Any) -> Any:
        """``f`` in the session."""
        return tj.jit(f, session=self.session, **more)


@pytest.fixture
def graphed() -> Any:
    """Make sessions that capture as much as possible, unless arguments say otherwise."""

    def make(*before: Any, check: Any = 1, strict: bool = True, **options: Any) -> Graphed:
        plugin = RecorderPlugin()
        chosen = {"minimum": 1, "warmup": 1} | options
        overrides = {"check": check, "strict": strict, "cudagraph_recorder": chosen}
        plugins = (plugin, *before, "autograd", "torch")
        return Graphed(tj.Session(plugins, overrides=overrides), plugin.recorder)

    return make


@pytest.fixture
def session(graphed: Any) -> Graphed:
    """A session with the defaults of `graphed`."""
    return graphed()  # type: ignore[no-any-return]
