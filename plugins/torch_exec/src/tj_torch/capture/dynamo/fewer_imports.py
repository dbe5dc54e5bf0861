"""Imports that Dynamo makes in the first capture of a process, and that captures do not need.

They take a tenth of the first step in a process that finds its program on disk: the compiler of
gradients, `torch.export`, and networkx for both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import torch

from tj_torch.torch_private.replacement import has, replace
from tj_torch.torch_private.runtime import peek_interpreter_stack

__all__ = ["importing_less"]

PYTORCH = str(Path(torch.__file__).parent)
LAYERS = str(Path(torch.nn.__file__).parent)
GENERATED = "<string>"
"""The file of code that Python makes of a text, as for dataclasses."""


@contextlib.contextmanager
def importing_less() -> Iterator[None]:
    """Let Dynamo ask only where it matters what it imports modules for. Under the lock."""
    from tj_torch.torch_private import dynamo

    with contextlib.ExitStack() as stack:
        if has(dynamo.InstructionTranslator, "_throw_if_in_functorch"):
            replace(stack, dynamo.InstructionTranslator, "_throw_if_in_functorch", _in_transform)
        if has(dynamo.output_graph, "uninteresting_files"):
            replace(stack, dynamo.output_graph, "uninteresting_files", _files)
        if has(dynamo.OutputGraph, "get_replayed_side_effect_source_refs"):
            replace(stack, dynamo.OutputGraph, "get_replayed_side_effect_source_refs", _unlisted)
        yield


def _unlisted(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """List no names of objects that a program changes where this is for hooks of bytecode.

    Captures of whole programs run none; with ``populate_export_metadata`` it is for messages.
    """

    def refs(graph: Any, *, populate_export_metadata: bool = False) -> list[str]:
        wanted = populate_export_metadata
        return original(graph, populate_export_metadata=True) if wanted else []

    return refs


def _in_transform(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Compare Dynamo's backend with "eager", among all of them, below `torch.func` alone."""

    def throw_if_in_functorch(tx: Any) -> None:
        if peek_interpreter_stack() is not None:
            original(tx)

    return throw_if_in_functorch


def _files(original: Callable[[], Container[Any]]) -> Callable[[], Container[Any]]:
    return lambda: Uninteresting(original)


class Uninteresting:
    """The files that Dynamo leaves out of the stack of a call: some of PyTorch's, and `GENERATED`.

    ``files`` imports the modules of all of them.
    """

    def __init__(self, files: Callable[[], Container[Any]]) -> None:
        self.files = files

    def __contains__(self, file: Any) -> bool:
        # Most lines of PyTorch's in programs are those of layers.
        own = file.startswith(PYTORCH) and not file.startswith(LAYERS)
        return (own or file == GENERATED) and file in self.files()
