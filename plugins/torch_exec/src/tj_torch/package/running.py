"""From the texts of traces to a function, without a session, a capture or a compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tj_core.extend import Language, PackageError, Symbol, Trace, generate

from tj_torch.functionalize.outer import PROGRAM
from tj_torch.ops.context.ambient import autocast_devices
from tj_torch.ops.context.entering import spellings
from tj_torch.ops.dialect.dialects import dialects

__all__ = ["language", "parsed", "program", "text_of"]


@functools.cache
def language() -> Language:
    """PyTorch's dialects and contexts, as a session has them that has no other plugin."""
    return Language(dialects(), spellings(autocast_devices()))


def parsed(text: bytes, constants: Mapping[str, torch.Tensor]) -> Trace:
    """The trace that a member holds; ``constants`` are those that it names."""
    return Trace.parse(text.decode(), language=language(), constants=constants)


def text_of(trace: Trace) -> bytes:
    """The text of ``trace``.

    :raises PackageError: if it does not read back as the same trace, given its constants, which
        have to be tensors.
    """
    constants = trace.constants()
    for name, value in constants.items():
        if type(value) is not torch.Tensor:
            raise PackageError(f"the program holds an object, {name}, which has no text")
    text = trace.python().encode()
    if parsed(text, constants) != trace:
        raise PackageError(f"the trace {trace.name!r} does not read back from its text")
    return text


def program(
    traces: Mapping[str, Trace],
    implementations: Mapping[Symbol, Any],
    training: Mapping[str, Any] | None,
) -> Callable[..., Sequence[Any]]:
    """The function of the inputs that runs ``computation``, within ``epilogue`` if there is one.

    With ``training`` it has the gradients that the programs of its nodes compute.
    """
    function = generate(traces["computation"], implementations).function
    if training is not None:
        from tj_torch.package.training import differentiable

        names = [node["name"] for node in training["nodes"]]
        backwards = {name: generate(traces[name], implementations).function for name in names}
        function = differentiable(function, backwards, training)
    if "epilogue" not in traces:
        return function
    return generate(traces["epilogue"], {PROGRAM: function}).function
