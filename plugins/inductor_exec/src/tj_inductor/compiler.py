"""Compiles regions: those of one program together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch
from tj_core.extend import Fused, FusionRegion

from tj_inductor import adapter
from tj_inductor.graph import example_inputs, interpreter
from tj_inductor.kernels import Collected, collecting
from tj_inductor.options import Options

__all__ = ["Compiler"]


class Compiler:
    """Compiles regions with ``options``."""

    def __init__(self, options: Options) -> None:
        self.options = options

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Inside, C++ kernels are collected; on exit, all are compiled at once."""
        if not self.options.one_compile or not Collected.supported():
            yield
            return
        with collecting():
            yield

    def compile(self, region: FusionRegion) -> Fused:
        """The region as one function of a list of its inputs."""
        start = time.perf_counter()
        settings = self.settings(region)
        mode = adapter.FakeTensorMode()
        with torch.no_grad(), adapter.settings(settings):
            with mode:
                inputs = example_inputs(region)
            graph = adapter.traced(interpreter(region), inputs, mode)
            visible = [i for i in range(len(region.outputs)) if i not in region.flexible]
            made = adapter.compiled(graph, inputs, mode, visible, backward=region.backward)
        strides = {i: found for i in region.flexible if (found := made.strides[i]) is not None}
        seconds = time.perf_counter() - start
        return Fused(made.function, True, made.source, seconds, strides)

    def settings(self, region: FusionRegion) -> dict[str, object]:
        """Inductor's settings for ``region``; tj checks the first run, so assertions are off."""
        return {
            "size_asserts": False,
            "alignment_asserts": False,
            "scalar_asserts": False,
            "emulate_precision_casts": self.options.emulate_precision,
            "cpp.use_decompose_tanh": self.options.decompose_tanh,
        }
