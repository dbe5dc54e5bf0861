"""Backend for ``torch.compile(model, backend="tj")`` (entry point ``tj``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tj_core import tag
from tj_core.extend import ConfigError
from tj_core.internal import backend_state

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.dynamo import autograd_functions
from tj_torch.dispatch.behind import noted
from tj_torch.dispatch.compiler import GraphCompiler
from tj_torch.ops.service import TorchDialects

if TYPE_CHECKING:
    import torch

__all__ = ["tj"]

_ITS_OWN = "it is torch.compile's own keyword: torch.compile(f, backend='tj', {}=...)"

_BEFORE = {
    "autocast": "enter torch.autocast in the program, or around its calls",
    "dynamic": _ITS_OWN.format("dynamic"),
    "frontend": "torch.compile captures the program; tj.jit(f, frontend=...) chooses another way",
    "fullgraph": _ITS_OWN.format("fullgraph"),
    "on_miss": "torch.compile compiles in the call; tj.jit(f, on_miss=...) does otherwise",
}
"""Keywords of `tj.jit` that say how a program is captured and called, and what there is instead."""

# At import, hence before the first capture: torch.compile looks up its backend first.
dynamo.record_calls(tag)
autograd_functions.install()


def tj(
    graph: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    **unsupported: Any,
) -> Callable[..., Any]:
    """Compile one graph that Dynamo captured.

    ``options`` are keywords of `tj.jit`: ``torch.compile(f, backend="tj", options={...})``.

    :raises ConfigError: for torch.compile's ``mode`` and other keywords, with their equivalents;
        for keywords of `tj.jit` that have no effect on a graph which is captured already.
    """
    for name, instead in _BEFORE.items():
        if (options or {}).get(name) is not None:
            raise ConfigError(f"torch.compile(backend='tj') has no option {name!r}", hint=instead)
    jitted = backend_state(graph, **(options or {}), **unsupported)
    if not jitted.session.config.core.enable:
        return graph.forward
    compiler = GraphCompiler(jitted, TorchDialects.of(jitted.session))
    return noted(
        jitted,
        lambda: backend_state(tj, **(options or {})),
        lambda: compiler.backend(graph, examples),
    )
