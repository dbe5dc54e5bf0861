"""Tensor kinds: how calls on tensors of subclasses are expanded, differentiated and written.

Rule table ``tensor_kinds`` has a `TensorKind` for a class under its dotted name, for those of a
package under ``acme.*``, for all others under ``*``. tj-torch has none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Context,
    Expand,
    RuleTable,
    Symbol,
    TensorProxy,
    Trace,
)

from tj_torch.ops.errors import CannotExpand

if TYPE_CHECKING:
    import torch

    from tj_torch.ops.expansion.derivation import Derivation, Slot
    from tj_torch.ops.expansion.run import Run

__all__ = ["TENSOR_KINDS", "Kinds", "NoTensorKind", "TensorKind", "class_name", "rules"]

TENSOR_KINDS = "tensor_kinds"
"""The table's name."""


@dataclass(frozen=True, slots=True)
class TensorKind:
    """Everything that tj-torch asks about tensors of a class that is not PyTorch's own.

    ``run`` makes the run of a call that takes or returns such tensors, from one for plain tensors
    that has not begun; its ``expansion`` says what the call does. ``derive`` gives the gradient of
    the call of such a run, for the metadata of tangents, or all that can be (None); the last
    argument is ``create_graph`` of `derive`. Both raise `CannotExpandError` where the call has to
    stay whole.

    ``parts`` are the plain tensors that one consists of, in order: programs that write are guarded
    by who else holds their memory.

    ``check_writes`` sees that what a program writes of such tensors is known by views of them,
    ``check_copy`` that ``target.copy_(value)`` under a context gives ``target`` the parts of
    ``value``. ``is_laid_out`` says whether the value that a call computes has all strides of
    another one. All three raise `Unsuitable` where the program has to run as it is written.
    """

    run: Callable[[Run], Run]
    derive: Callable[[Run, Mapping[Slot, TensorProxy] | None, bool], Derivation]
    parts: Callable[[torch.Tensor], Iterable[torch.Tensor]]
    check_writes: Callable[[Trace], None]
    check_copy: Callable[[TensorProxy, TensorProxy, Context, RuleTable[Expand]], None]
    is_laid_out: Callable[[BoundSymbol, TensorProxy, TensorProxy], bool]


class NoTensorKind(CannotExpandError):
    """A program has tensors of a subclass, and no plugin says how calls on them are handled."""

    def __init__(self, name: str) -> None:
        kind = name.rpartition(".")[2]
        super().__init__(
            f"{kind} is a tensor subclass, and no plugin of this session handles it; "
            "tj-subclass does (pip install tj-subclass)"
        )


def class_name(kind: type) -> str:
    """The name of a class in the table, as in `SubclassInfo.type`."""
    return f"{kind.__module__}.{kind.__qualname__}"


def rules() -> RuleTable[TensorKind]:
    """The table, without a rule."""
    return RuleTable(TENSOR_KINDS, rule_type=TensorKind)


class Kinds:
    """The kinds of a table, by class."""

    __slots__ = ("_table",)

    def __init__(self, table: RuleTable[TensorKind] | None = None) -> None:
        self._table = rules() if table is None else table

    def named(self, name: str) -> TensorKind:
        """The kind of the class called ``name``.

        :raises NoTensorKind: if no plugin has it.
        """
        package, _, rest = name.partition(".")
        rule = self._table.get(Symbol(package, rest))
        if rule is None:
            raise NoTensorKind(name)
        return rule.value

    def of(self, *values: Any) -> TensorKind | None:
        """The kind of the tensors among ``values`` that are of subclasses; None if none is.

        :raises NoTensorKind: if no plugin has it.
        :raises CannotExpand: if they are of several.
        """
        return self.among(names_in(values))

    def among(self, names: Iterable[str]) -> TensorKind | None:
        """The kind of the classes called ``names``; None if there is no name. Raises as `of`."""
        found: TensorKind | None = None
        for name in dict.fromkeys(names):
            kind = self.named(name)
            if found is not None and kind is not found:
                raise CannotExpand("it is called on tensors of subclasses that two plugins handle")
            found = kind
        return found

    def in_trace(self, trace: Trace) -> Iterator[TensorKind]:
        """The kinds of the values of ``trace``, each once.

        :raises NoTensorKind: if no plugin has one of them.
        """
        calls = (p for call in trace.calls if call.on_subclass for p in _tensors(call))
        names = dict.fromkeys(names_in((*trace.inputs, *calls)))
        yield from {id(kind): kind for kind in map(self.named, names)}.values()


def names_in(values: Iterable[Any]) -> Iterator[str]:
    """The names of the subclasses that ``values`` are of."""
    for p in values:
        if isinstance(p, TensorProxy) and p.subclass is not None:
            yield p.subclass.type


def _tensors(call: BoundSymbol) -> tuple[Any, ...]:
    return (*call.flat_args, *call.flat_outs)
