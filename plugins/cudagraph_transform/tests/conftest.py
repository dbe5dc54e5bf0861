"""Sessions with the recorder in place of CUDA's graphs, or with these under ``TJ_DEVICE=cuda``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_cudagraph.testing.counts import Counted
from tj_cudagraph.testing.plugin import RecorderPlugin

if TYPE_CHECKING:
    from tj_cudagraph.testing.recorder import Recorder


@dataclass
class Graphed:
    """A session; ``recorder`` counts what is captured and replayed in it."""

    session: tj.Session
    recorder: Recorder | Counted

    def jit(self, f: Any, **more: Any) -> Any:
        """``f`` in the session."""
        return tj.jit(f, session=self.session, **more)


def graphs_plugin() -> RecorderPlugin:
    """The plugin for the device that tests make tensors on."""
    if torch.get_default_device().type != "cuda":
        return RecorderPlugin()
    from tj_cudagraph.adapter import CudaGraphs

    return RecorderPlugin(Counted(CudaGraphs()))


@pytest.fixture
def recorded() -> None:
    """Skip tests that are about the recorder itself, or that set its state."""
    if torch.get_default_device().type != "cpu":
        pytest.skip("about the recorder, which is for CPUs")


@pytest.fixture
def graphed() -> Any:
    """Make sessions that capture as much as possible, unless arguments say otherwise."""

    def make(*before: Any, check: Any = 1, strict: bool = True, **options: Any) -> Graphed:
        plugin = graphs_plugin()
        chosen = {"minimum": 1, "warmup": 1} | options
        overrides = {"check": check, "strict": strict, "cudagraph_recorder": chosen}
        plugins = (plugin, *before, "autograd", "torch")
        return Graphed(tj.Session(plugins, overrides=overrides), plugin.recorder)

    return make


@pytest.fixture
def session(graphed: Any) -> Graphed:
    """A session with the defaults of `graphed`."""
    return graphed()  # type: ignore[no-any-return]
