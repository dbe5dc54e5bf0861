"""Hooks of tj-cudagraph. They import torch when called; this module does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tj_core.extend import hookimpl

from tj_cudagraph.options import Options

if TYPE_CHECKING:
    from tj_core.extend import Dialect, RuleTable, Transform

TJ_PLUGIN_API = 1


@hookimpl
def tj_available() -> str | None:
    import importlib.util

    if not importlib.util.find_spec("torch"):
        return "torch is not installed"
    from tj_torch.installation import has_no_cuda_device

    if has_no_cuda_device():
        return "PyTorch finds no CUDA device"
    from tj_cudagraph.adapter import unavailable

    return unavailable()


@hookimpl
def tj_lacking(cache_dir: str | None) -> str | None:
    from tj_torch.installation import Probed

    return Probed("tj-cudagraph", "tj_cudagraph").lacking(cache_dir)


@hookimpl
def tj_options() -> type[Any]:
    return Options


@hookimpl
def tj_rule_tables() -> tuple[RuleTable[Any], ...]:
    from tj_torch.extend import registered

    from tj_cudagraph.names import TABLE
    from tj_cudagraph.waits import waits

    return (waits(), registered(TABLE))


@hookimpl
def tj_dialects(options: Options) -> tuple[Dialect, ...]:
    from tj_cudagraph.adapter import CudaGraphs
    from tj_cudagraph.dialect import dialect
    from tj_cudagraph.segment import Segments

    return (dialect(Segments(CudaGraphs(), options)),)


@hookimpl
def tj_transforms(options: Options) -> tuple[Transform, ...]:
    from tj_cudagraph.transform import graph_segments

    return (graph_segments(options, "cuda"),)
