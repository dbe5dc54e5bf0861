"""The recorder: the operators that run below functionalization, as a list over numbered values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.operators import OpFacts, OpTable, Role
from tj_torch.ops.sizes.shape_env import is_symbolic, plain
from tj_torch.torch_private import ops as private
from tj_torch.torch_private.runtime import TorchDispatchMode

__all__ = ["NeedsPythonDispatcher", "Recorded", "Recorder", "Ref"]


class NeedsPythonDispatcher(Exception):
    """The operator hides a mutation, which only its Python decomposition shows."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of a recording, by number."""

    index: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """One operator call: arguments and outputs are trees with a `Ref` for each tensor.

    Symbolic numbers among the arguments stay what they are; those it returns are values, too.
    """

    facts: OpFacts
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    grad: bool
    draws: bool


@dataclass(eq=False)
class Recorder(TorchDispatchMode):
    """Records what is dispatched to it.

    ``values`` are what is behind the references, kept alive so that their ids stay theirs;
    ``constants`` the data of those that no operator made, ``written_out`` those of them whose data
    come from the call's arguments. ``captured`` is set when one came from outside of the call. A
    recorder with ``hidden_writes`` allows operators whose schemas hide a mutation, because their
    decompositions run in their place.
    """

    table: OpTable
    hidden_writes: bool = False
    calls: list[Recorded] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    written_out: set[Ref] = field(default_factory=set)
    captured: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self._refs: dict[int, Ref] = {}
        self._alive: list[torch.Tensor] = []

    def define(self, value: Any) -> Ref:
        """A new value, which ``value`` stands for unless it stands for one already."""
        ref = Ref(len(self.values))
        self.values.append(value)
        self._refs.setdefault(id(value), ref)
        return ref

    def ref(self, tensor: torch.Tensor, *, written_out: bool = False) -> Ref:
        """The value that ``tensor`` stands for; a constant if nothing recorded made it.

        ``written_out`` says that its data come from the call's arguments.

        :raises CannotExpand: for a tensor without data that appears from nowhere.
        """
        known = self._refs.get(id(tensor))
        if known is not None:
            return known
        data = private.fake_constant(tensor)
        if data is None:
            raise CannotExpand("a tensor without data appears from nowhere")
        self.captured |= not written_out and not private.is_fake(tensor)
        ref = self.define(tensor)
        self.constants[ref.index] = data
        return ref

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` on the modes below and record it."""
        kwargs = kwargs or {}
        facts = self.table[func]
        if facts.role is Role.QUERY:
            return func(*args, **kwargs)
        if facts.role is Role.IDENTITY:
            return self._identity(func, *args, **kwargs)
        if facts.hidden_writer and not self.hidden_writes and facts.writes_hidden(args):
            raise NeedsPythonDispatcher
        # Before the call: a kernel may write its arguments.
        encoded_args, encoded_kwargs = self._encode(args), self._encode(kwargs)
        result = func(*args, **kwargs)
        self.calls.append(
            Recorded(
                facts,
                encoded_args,
                encoded_kwargs,
                self._outputs(result),
                torch.is_grad_enabled(),
                facts.draws(args, kwargs),
            )
        )
        return result

    def _identity(self, func: Any, tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        ref = self.ref(tensor, written_out=True)
        result: torch.Tensor = func(tensor, **kwargs)
        self._refs.setdefault(id(result), ref)
        self._alive += (tensor, result)
        if ref.index in self.constants:
            self.written_out.add(ref)
            self.values[ref.index] = result  # what other values are views of
        return result

    def _encode(self, tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            return self.ref(tree)
        if isinstance(tree, tuple):
            return tuple([self._encode(item) for item in tree])
        if isinstance(tree, list):
            return [self._encode(item) for item in tree]
        if isinstance(tree, dict):
            return {key: self._encode(item) for key, item in tree.items()}
        return plain(tree)

    def _outputs(self, tree: Any) -> Any:
        if isinstance(tree, torch.Tensor) or is_symbolic(tree):
            return self.define(tree)
        if isinstance(tree, tuple | list):
            items = [self._outputs(item) for item in tree]
            return tuple(items) if isinstance(tree, tuple) else items
        return plain(tree)
