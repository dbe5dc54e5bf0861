"""``torch.compile(model, backend="tj")``: tj below PyTorch's own hook (entry point ``tj``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tj_core import tag
from tj_core.extend import backend_state

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.dynamo import applied
from tj_torch.dispatch.compiler import GraphCompiler
from tj_torch.ops.service import TorchDialects

__all__ = ["tj"]

# Before the first capture: torch.compile looks the backend up first, then looks at the program.
dynamo.record_calls(tag)
applied.install()


def tj(
    graph: torch.fx.GraphModule,
    examples: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    **unsupported: Any,
) -> Callable[..., Any]:
    """Compile one graph that Dynamo captured.

    ``options`` are keywords of `tj.jit`: ``torch.compile(f, backend="tj", options={...})``.

    :raises TypeError: for torch.compile's own modes, which mean nothing to tj.
    """
    if unsupported:
        raise TypeError(f"backend 'tj' does not take {', '.join(sorted(unsupported))}")
    jitted = backend_state(graph, **(options or {}))
    compiler = GraphCompiler(jitted, TorchDialects.of(jitted.session))
    return compiler.backend(graph, examples)
