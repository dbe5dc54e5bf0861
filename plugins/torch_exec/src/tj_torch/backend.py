"""Backend for ``torch.compile(model, backend="tj")`` (entry point ``tj``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tj_core import tag
from tj_core.internal import backend_state

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.dynamo import autograd_functions
from tj_torch.dispatch.behind import noted
from tj_torch.dispatch.compiler import GraphCompiler
from tj_torch.ops.service import TorchDialects

if TYPE_CHECKING:
    import torch

__all__ = ["tj"]

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

    :raises ConfigError: for torch.compile's ``mode`` and other keywords, with their equivalents.
    """
    jitted = backend_state(graph, **(options or {}), **unsupported)
    if not jitted.session.config.core.enable:
        return graph.forward
    compiler = GraphCompiler(jitted, TorchDialects.of(jitted.session))
    return noted(
        jitted,
        lambda: backend_state(tj, **(options or {})),
        lambda: compiler.backend(graph, examples),
    )
