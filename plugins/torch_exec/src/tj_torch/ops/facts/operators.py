"""Facts of operators for the recorder, beyond their schemas."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from tj_core.extend import Constant, Symbol

__all__ = ["OpFacts", "OpTable", "Role", "op_symbol"]


class Role(enum.Enum):
    """Treatment of an operator's calls by the recorder."""

    RECORD = "record"
    QUERY = "query"
    """Reads metadata only; left out of bodies."""
    IDENTITY = "identity"
    """Returns the value of its argument; the result gets the argument's reference."""


_QUERIES = frozenset(
    [
        "prim::device",
        "prim::layout",
        "aten::dim",
        "aten::is_contiguous",
        "aten::is_non_overlapping_and_dense",
        "aten::is_strides_like_format",
        "aten::numel",
        "aten::size",
        "aten::storage_offset",
        "aten::stride",
        "aten::sym_numel",
        "aten::sym_size",
        "aten::sym_storage_offset",
        "aten::sym_stride",
    ]
)
_IDENTITIES = frozenset(["aten::lift", "aten::lift_fresh"])

# In training these write running statistics, which their schemas do not declare.
_HIDDEN_WRITERS = frozenset(f"aten::{k}_batch_norm" for k in ("native", "cudnn", "miopen"))

# Arguments of seeded operators that draw no random numbers when the argument is zero.
_DROPOUT_ARGUMENTS = ("dropout_p", "dropout")
_COLLECTIVES = frozenset(["c10d", "_c10d_functional", "c10d_functional"])
_COLLECTIVE, _WAIT = "collective", "wait"
_GROUPS = ("group_name",)
_BUILTIN = frozenset(["aten", "prim", "prims"])


@dataclass(frozen=True, slots=True)
class OpFacts:
    """Facts of one operator.

    ``seeded``: it draws random numbers, unless the argument with the position or name in
    ``dropout`` is zero. ``kept``: it is never dead, since it checks something or returns nothing.
    ``group``: position and name of the argument with the name of a collective's process group.
    ``builtin``: PyTorch itself, not an extension, defines it. ``hidden_writer``: its schema hides
    a write.
    """

    op: Any
    symbol: Symbol
    role: Role
    seeded: bool
    kept: bool
    collective: bool
    group: tuple[int, str] | None
    hidden_writer: bool
    builtin: bool
    dropout: tuple[int, str] | None

    def draws(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Test if a call with these arguments draws random numbers."""
        if not self.seeded or self.dropout is None:
            return self.seeded
        position, name = self.dropout
        value = args[position] if position < len(args) else kwargs.get(name, 0.0)
        return bool(value)

    def resource(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The resource that orders a call of a collective with these arguments.

        ``collective:<group>`` for a start, ``collective`` if the group has no name there. A wait
        follows its start by the value that it takes, whatever else starts between: ``wait``.
        """
        if not self.collective:
            return None
        if self.symbol.name.rpartition(".")[0].endswith(".wait_tensor"):
            return _WAIT
        if self.group is None:
            return _COLLECTIVE
        position, name = self.group
        group = args[position] if position < len(args) else kwargs.get(name)
        return f"{_COLLECTIVE}:{group}" if isinstance(group, str) else _COLLECTIVE

    def writes_hidden(self, args: tuple[Any, ...]) -> bool:
        """Test if a batch norm in training (``args[5]``) updates running statistics."""
        return self.hidden_writer and bool(args[5]) and args[3] is not None


def op_symbol(op: Any) -> Symbol:
    """Symbol of an ``OpOverload``: ``aten.add.Tensor``, ``torch.ops.mylib.f.default``."""
    namespace, _, name = op._schema.name.partition("::")
    overload = op._overloadname
    if namespace == "aten":
        return Symbol("aten", f"{name}.{overload}")
    return Symbol("torch", f"ops.{namespace}.{name}.{overload}")


class OpTable:
    """Cache of operators' facts, and of the constants in bodies."""

    __slots__ = ("_facts", "_generators", "constants")

    def __init__(self) -> None:
        self._facts: dict[Any, OpFacts] = {}
        self._generators: dict[int, Constant] = {}
        self.constants: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()

    def generator(self, generator: torch.Generator) -> Constant:
        """Constant for a generator, for which PyTorch passes a new Python object each time."""
        name = f"_generator_{len(self._generators)}"
        return self._generators.setdefault(
            generator._cdata,  # type: ignore[attr-defined]
            Constant(name, generator, named=False),
        )

    def __getitem__(self, op: Any) -> OpFacts:
        facts = self._facts.get(op)
        if facts is None:
            facts = self._facts[op] = _facts(op)
        return facts


def _facts(op: Any) -> OpFacts:
    schema = op._schema
    namespace = schema.name.partition("::")[0]
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    return OpFacts(
        op,
        op_symbol(op),
        _role(schema.name),
        seeded,
        kept=not schema.returns or "assert" in schema.name,
        collective=namespace in _COLLECTIVES,
        group=_argument(schema, _GROUPS) if namespace in _COLLECTIVES else None,
        hidden_writer=schema.name in _HIDDEN_WRITERS,
        builtin=namespace in _BUILTIN,
        dropout=_argument(schema, _DROPOUT_ARGUMENTS),
    )


def _role(name: str) -> Role:
    if name in _QUERIES:
        return Role.QUERY
    return Role.IDENTITY if name in _IDENTITIES else Role.RECORD


def _argument(schema: Any, names: tuple[str, ...]) -> tuple[int, str] | None:
    for position, argument in enumerate(schema.arguments):
        if argument.name in names:
            return position, argument.name
    return None
