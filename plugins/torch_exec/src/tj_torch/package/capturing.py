"""Capture for a package: the graph, and the code around it as a description of results.

What Dynamo records beside the graph is bytecode of this process: it reads the graph's inputs from
arguments and objects, and builds the result. Here it runs once, with stand-ins for the graph's
results: what is where in the result says all that a package needs of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import NumberProxy, PackageError, Proxy, Trace, leaves

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.sources import stack_source
from tj_torch.package import trees
from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    import types

    from tj_torch.package.given import Dynamic, Given

__all__ = ["Replayed", "captured", "replayed"]

_STAND_IN = 1 << 61
"""First of the numbers that stand for results which are numbers."""


def captured(
    fn: Any, name: str, given: Given, dynamic: Dynamic, opaque: tuple[Callable[..., Any], ...]
) -> dynamo.Capture:
    """The graph that Dynamo records of ``fn``, called ``name`` in messages.

    :raises PackageError: if there is none, or it is not all that the program does.
    """
    changed: list[str] = []
    # With marks, sizes that are not marked are fixed, as in a first call.
    sizes = dynamic if isinstance(dynamic, bool) else None
    try:
        with ExitStack() as stack:
            _note_changes(stack, changed)
            root = _root(fn)
            found = dynamo.capture(
                root, tuple(given.args), given.kwargs, dynamic=sizes, opaque=opaque
            )
    except dynamo.CaptureFailure as error:
        reason, source = error.reason.partition("\n")[0], stack_source(error.stack)
        raise PackageError(
            f"{name} cannot be captured whole: {reason}",
            hint="a package has no graph breaks: change that line, or export a part without it",
            source=source,
        ) from None
    except dynamo.Uninitialized:
        raise PackageError(f"{name} has lazy modules", hint="call it once before") from None
    if changed:
        raise PackageError(f"{name} changes {changed[0]}, and a package changes no Python objects")
    if found.graph is None:
        raise PackageError(f"{name} computes nothing with tensors")
    return found


def _root(fn: Any) -> types.FunctionType:
    def root(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return root  # type: ignore[return-value]


def _note_changes(stack: ExitStack, changed: list[str]) -> None:
    """Note in ``changed`` the objects of others that a captured program changes."""
    from tj_torch.torch_private.dynamo import AttributeMutationNew, OutputGraph, ValueMutationNew

    new = (AttributeMutationNew, ValueMutationNew)

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_subgraph(self: Any, *args: Any, **kwargs: Any) -> Any:
            effects = self.side_effects
            for variable in effects.id_to_variable.values():
                mine = isinstance(variable.mutation_type, new)
                if not (mine or _is_as_before(variable, effects)):
                    source = variable.source
                    changed.append("an object" if source is None else _readable(source.name))
            return original(self, *args, **kwargs)

        return compile_subgraph

    replace(stack, OutputGraph, "compile_subgraph", noting)


def _is_as_before(variable: Any, effects: Any) -> bool:
    """Test if an object is not changed, or only for the time of the call: attributes are reset."""
    if not effects.is_modified(variable):
        return True
    pending = effects.store_attr_mutations.get(variable)
    owner = getattr(variable, "value", None) if pending else None  # a list has none
    if not pending or not hasattr(owner, "__dict__"):
        return False
    return all(_is_constant(new, vars(owner).get(name, pending)) for name, new in pending.items())


def _is_constant(variable: Any, value: Any) -> bool:
    """Test if ``variable`` is the plain ``value``."""
    if trees.value_text(value) is None or not variable.is_python_constant():
        return False
    return trees.value_text(variable.as_python_constant()) == trees.value_text(value)


def _readable(source: str) -> str:
    return source.removeprefix("L['fn']").lstrip(".") or "the program's own attributes"


@dataclass(frozen=True)
class Replayed:
    """A run of the code around a graph.

    ``inputs`` are the values that the graph gets, ``results`` the stand-ins for what it returns, by
    place, and ``returned`` is what the program returns then.
    """

    inputs: tuple[Any, ...]
    results: tuple[Any, ...]
    returned: Any

    def described(
        self, given: Given, name_of: Callable[[torch.Tensor], str | None], symbolic: bool
    ) -> trees.Tree:
        """The tree of the result: ``name_of`` names the tensors of the program's own.

        With ``symbolic`` sizes, numbers that the graph does not return may be some that the code
        around it has computed of sizes, and are refused.

        :raises PackageError: for a part that has no place in a package.
        """
        tensors = {id(r): i for i, r in enumerate(self.results) if isinstance(r, torch.Tensor)}
        numbers = {r: i for i, r in enumerate(self.results) if not isinstance(r, torch.Tensor)}
        places = {id(x): i for i, x in given.tensors()}

        def leaf(value: Any, path: str) -> trees.Tree | None:
            if isinstance(value, torch.Tensor):
                for kind, known in (("result", tensors), ("leaf", places)):
                    if id(value) in known:
                        return [kind, known[id(value)]]
                name = name_of(value)
                if name is None:
                    raise PackageError(f"{path} is a tensor that the program did not compute")
                return ["state", name]
            if type(value) is int and value in numbers:
                return ["result", numbers[value]]
            if symbolic and type(value) in (int, float, complex, torch.Size):
                raise PackageError(
                    f"{path} is a number, which may depend on sizes that are symbols",
                    hint="leave it out, or return it as a tensor",
                )
            return None

        return trees.described(self.returned, leaf, "the result")


def replayed(captured: dynamo.Capture, trace: Trace, given: Given) -> Replayed:
    """Run the code around the graph of ``captured``, whose acquired trace is ``trace``."""
    outputs = [p for p in leaves(trace.outputs) if not _is_none(p)]
    results = tuple(_stand_in(i, p) for i, p in enumerate(outputs))
    seen: list[tuple[Any, ...]] = []

    def graph(*values: Any) -> tuple[Any, ...]:
        seen.append(values)
        return results

    returned = captured.build(graph, lambda: None).run(*given.args, **given.kwargs)
    (inputs,) = seen
    return Replayed(inputs, results, returned)


def _is_none(value: object) -> bool:
    return value is None


def _stand_in(place: int, p: object) -> Any:
    if isinstance(p, NumberProxy) or not isinstance(p, Proxy):
        return _STAND_IN + place
    return torch.empty(0)
