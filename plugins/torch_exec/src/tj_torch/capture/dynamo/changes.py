"""Python objects that a program changes: Dynamo applies the changes after the graph has run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tj_torch.torch_private.replacement import replace

if TYPE_CHECKING:
    from tj_torch.capture.dynamo.observations import Observations

__all__ = ["changes_objects", "has_changed", "is_new", "noting_changes"]


def is_new(variable: Any) -> bool:
    """Test for an object or a container that the program has made."""
    from tj_torch.torch_private.dynamo import AttributeMutationNew, ValueMutationNew

    return isinstance(variable.mutation_type, (AttributeMutationNew, ValueMutationNew))


def has_changed(effects: Any) -> bool:
    """Test if the program has changed an object that it did not make."""
    known = (v for v in effects.id_to_variable.values() if not is_new(v))
    return bool(effects.tensor_hooks) or any(map(effects.is_modified, known))


def changes_objects() -> bool:
    """Test if the fragment whose graph is being compiled changes such objects.

    To be called by a backend; False if this PyTorch does not tell.
    """
    from tj_torch.torch_private.lookup import MissingNameError

    try:
        from tj_torch.torch_private.dynamo import InstructionTranslator

        return has_changed(InstructionTranslator.current_tx().output.side_effects)
    except (MissingNameError, AttributeError):
        return False


@contextmanager
def noting_changes(noticed: Observations) -> Iterator[None]:
    """Note if programs that are captured inside change such objects."""
    from tj_torch.torch_private.dynamo import OutputGraph

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_subgraph(self: Any, *args: Any, **kwargs: Any) -> Any:
            # Now, since Dynamo clears its record at the end.
            noticed.changes = has_changed(self.side_effects)
            noticed.draws = bool(self.random_calls)
            return original(self, *args, **kwargs)

        return compile_subgraph

    with ExitStack() as stack:
        replace(stack, OutputGraph, "compile_subgraph", ending)
        yield
