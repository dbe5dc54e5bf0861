"""Recorder of the operators that run below functionalization, over numbered values."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch

from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.facts.operators import OpFacts, OpTable, Role
from tj_torch.ops.sizes.shape_env import is_symbolic, plain
from tj_torch.torch_private import ops as private
from tj_torch.torch_private.runtime import TorchDispatchMode

__all__ = ["NeedsPythonDispatcher", "Recorded", "Recorder", "Ref"]


BERNOULLI = torch.ops.aten.bernoulli.p
PERMUTE = torch.ops.aten.permute.default

_BERNOULLI = (BERNOULLI, torch.bernoulli, torch.Tensor.bernoulli)
"""Functions that call `BERNOULLI` themselves."""


class NeedsPythonDispatcher(Exception):
    """The operator has a mutation that only its Python decomposition shows."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Number of a value in a recording."""

    index: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """Operator call; arguments and outputs are trees with a `Ref` for each tensor.

    Symbolic numbers among the arguments stay as they are; returned ones have a `Ref`, too.
    """

    facts: OpFacts
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    grad: bool
    draws: bool


@dataclass(eq=False)
class Recorder(TorchDispatchMode):
    """Dispatch mode that records operators.

    ``values`` are the values by number, kept alive so that their ids stay unique; ``constants``
    the data of values that no operator made, ``written_out`` those of them whose data come from
    the call's arguments, as in ``torch.tensor([1, 2])``. ``captured`` is set once a tensor from
    outside of the call is used. With ``hidden_writes``, operators whose schemas hide a mutation
    are allowed, because their decompositions run instead. ``function`` is what is recorded.
    """

    table: OpTable
    hidden_writes: bool = False
    function: Any = None
    calls: list[Recorded] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    written_out: set[Ref] = field(default_factory=set)
    captured: bool = False

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._refs: dict[int, Ref] = {}
        self._alive: list[torch.Tensor] = []

    def define(self, value: Any) -> Ref:
        """Number a new value; ``value`` keeps an earlier number if it has one."""
        ref = Ref(len(self.values))
        self.values.append(value)
        self._refs.setdefault(id(value), ref)
        return ref

    def ref(self, tensor: torch.Tensor, *, written_out: bool = False) -> Ref:
        """Reference of ``tensor``; it becomes a constant if no recorded operator made it.

        With ``written_out``, its data come from the call's arguments.

        :raises CannotExpand: for a fake tensor that is neither given nor computed.
        """
        known = self._refs.get(id(tensor))
        if known is not None:
            return known
        data = private.fake_constant(tensor)
        if data is None:
            raise CannotExpand("it uses a fake tensor that is neither given nor computed")
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
        if func is BERNOULLI and self.function not in _BERNOULLI:
            order = _order(args[0])
            if order is not None:
                return self._drawn_in_place(order, *args, **kwargs)
        # Before the call, since a kernel may write its arguments.
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
        # Their ids are keys in `_refs`: nothing else may get them.
        self._alive += (tensor, result)
        if ref.index in self.constants:
            self.written_out.add(ref)
            self.values[ref.index] = result  # the base of other values
        return result

    def _drawn_in_place(
        self, order: list[int], x: torch.Tensor, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """Record `bernoulli_` of a tensor whose memory has this ``order`` of dimensions.

        A write draws in the order of memory. Functionalization (2.13, 2.14) puts ``bernoulli`` in
        its place, which draws in the order of indices. For other draws, such as ``uniform_``, it
        copies the argument and writes the copy.
        """
        call = functools.partial(self.__torch_dispatch__, types=())
        turned = call(PERMUTE, args=(x, order))
        drawn = call(BERNOULLI, args=(turned, *args), kwargs=kwargs)
        back = [order.index(i) for i in range(x.dim())]
        found: torch.Tensor = call(PERMUTE, args=(drawn, back))
        return found

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


def _order(x: torch.Tensor) -> list[int] | None:
    """Dimensions of ``x`` from the largest stride on; None if that is their own order."""
    if x.is_contiguous():
        return None
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    return None if order == list(range(x.dim())) else order
