"""Break the graph before code that would not see what the program has written to Python objects.

Dynamo applies a program's writes after the graph has run. The handlers of a tensor subclass, and
the Python kernels of custom operators, run in the graph; they would read what was there before.
So does the graph break where a handler asks for the time: handlers run at capture alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.changes import has_changed, is_new
from tj_torch.capture.dynamo.patches import stop
from tj_torch.ops.facts.python_kernels import python_kernels
from tj_torch.ops.fakes.places import is_users
from tj_torch.ops.fakes.read_state import reads_of
from tj_torch.runtime.subclasses import kinds_in
from tj_torch.torch_private.replacement import replace
from tj_torch.torch_private.runtime import pytree

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = ["leave_unseen_writes"]


def leave_unseen_writes(stack: ExitStack) -> None:
    """Break the graph at a call whose Python code reads what the program has written."""
    from tj_torch.torch_private.dynamo import utils

    replace(stack, utils, "run_node", _looking)


def _looking(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_node(tracer: Any, node: Any, args: Any, kwargs: Any, *rest: Any) -> Any:
        given = kinds_in(pytree.tree_leaves((args, kwargs)))
        kernels = python_kernels(node.target)
        if given or kernels or kernels is None:
            _check(tracer.current_tx.output, node, given, kernels)
        found = original(tracer, node, args, kwargs, *rest)
        made = kinds_in(pytree.tree_leaves(found)) - given
        if made:
            _check(tracer.current_tx.output, node, made, ())
        return found

    return run_node


def _check(output: Any, node: Any, kinds: Iterable[type], kernels: tuple[Any, ...] | None) -> None:
    """Break the graph if what runs in a call of ``node`` reads what is written after the graph."""
    handling = [kind for kind in kinds if _has_handler(kind)]
    if handling and (anew := reads_of(handling).anew):
        stop(f"a tensor subclass asks for {anew[0]}(), which answers anew in each call")
    effects = output.side_effects
    if not effects.store_attr_mutations and not has_changed(effects):
        return
    if handling or kernels:
        found = reads_of((*handling, *(kernels or ())))
        for written, names in _written(output):
            for read in found.values:
                if read.is_changed_by(written, names):
                    stop(f"{node.target} reads {read.label}, which the program has written")
        for name in sorted(found.names & _of_tensors(effects) if handling else ()):
            stop(f"{node.target} may read {name} of a tensor, which the program has written")
    if kernels is None and has_changed(effects):
        stop(f"the kernel of {node.target} may read what the program has written")


def _has_handler(kind: type) -> bool:
    """Test for a user's ``__torch_dispatch__``; Dynamo traces a ``__torch_function__``."""
    bases = (base for base in kind.__mro__ if "__torch_dispatch__" in vars(base))
    return is_users(next(bases).__module__)


def _written(output: Any) -> Iterator[tuple[Any, Set[str]]]:
    """Objects that were there before and that the program has written, with the attributes."""
    from tj_torch.torch_private.dynamo import NewGlobalVariable

    effects = output.side_effects
    objects = {id(value): value for value in effects.keepalive}
    for number, variable in effects.id_to_variable.items():
        if not is_new(variable) and effects.is_modified(variable):
            names = effects.store_attr_mutations.get(variable, {}).keys()
            is_global = isinstance(variable, NewGlobalVariable)
            yield output.global_scope if is_global else objects.get(number), names


def _of_tensors(effects: Any) -> set[str]:
    """Names of attributes of tensors that the program has written."""
    from tj_torch.torch_private.dynamo import TensorVariable

    written = effects.store_attr_mutations.items()
    return {name for v, names in written if isinstance(v, TensorVariable) for name in names}
