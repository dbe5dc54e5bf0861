"""Emit calls of a functional program, each on behalf of a call of the acquired one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Context,
    Expand,
    Proxy,
    RuleTable,
    Symbol,
    TagRegistry,
    TensorProxy,
    TjError,
    Trace,
    TraceEditor,
    bind_outputs,
    requires_grad,
)
from tj_core.internal import reexpand

from tj_torch.functionalize.forms import computed, on_behalf
from tj_torch.functionalize.inplace_argument import saves_argument, without_writing
from tj_torch.functionalize.objects import Unsuitable
from tj_torch.ops.naming.resolve import resolve

if TYPE_CHECKING:
    from tj_torch.ops.expansion.kinds import Kinds, TensorKind

__all__ = ["WITH_STRIDES", "Emitter"]

CLONE = Symbol("torch", "clone")
WITH_STRIDES = Symbol("tj", "with_strides")


@dataclass
class Emitter:
    """Emitter of calls into the ``editor`` that holds the functional program of ``trace``.

    ``joint``: gradients become calls of the program; else PyTorch's autograd makes them.
    """

    trace: Trace
    expand: RuleTable[Expand]
    tags: TagRegistry
    kinds: Kinds
    joint: bool

    def __post_init__(self) -> None:
        self.editor = TraceEditor(self.trace, self.tags)

    def laid_out(self, call: BoundSymbol, made: BoundSymbol, value: Proxy, like: Proxy) -> Proxy:
        """``value``, which ``made`` computes on behalf of ``call``, with the strides of ``like``.

        Memory keeps its strides when it is written; a body may compute other strides.
        """
        assert isinstance(value, TensorProxy)
        assert isinstance(like, TensorProxy)
        kind = self.kind_of(value, like)
        if kind is not None:
            # The strides of the parts count, too, which only the plugin knows.
            known = kind.is_laid_out(made, value, like)
            return value if known else self.made(call, WITH_STRIDES, (value, like), call.context)
        # For sizes 0 and 1, strides of kernels differ from those of fake tensors.
        known = not {0, 1}.intersection(like.shape)
        if known and value.strides == like.strides == computed(made, value).strides:
            return value
        return self.made(call, WITH_STRIDES, (value, like), call.context)

    def check_copy(self, target: Proxy, value: Proxy, context: Context) -> None:
        """Check that ``target.copy_(value)`` gives ``target`` the value ``value``.

        :raises Unsuitable: if ``target`` is of a subclass that does something else.
        """
        kind = self.kind_of(target)
        if kind is not None:
            assert isinstance(target, TensorProxy)
            assert isinstance(value, TensorProxy)
            kind.check_copy(target, value, context, self.expand)

    def kind_of(self, *values: Proxy) -> TensorKind | None:
        """The kind of the tensors of subclasses among ``values``; None if there are none.

        :raises Unsuitable: if no plugin has it, or it is not one.
        """
        try:
            return self.kinds.of(*values)
        except CannotExpandError as error:
            raise Unsuitable(error.message) from error

    def made(self, call: BoundSymbol, symbol: Symbol, args: Any, context: Context) -> Proxy:
        """Add a call of ``symbol`` on behalf of ``call``; return its result."""
        made = self.expanded(on_behalf(call, symbol, args, (), context), [args[0].name])
        self.editor.append(made)
        return made.flat_outs[0]

    def plain_form(self, call: BoundSymbol, functional: BoundSymbol) -> BoundSymbol:
        """The call that writes nothing instead of ``functional``, the functional form of ``call``.

        If its gradient needs the argument, that is a copy, as in eager, since the memory is
        written. PyTorch's autograd keeps the functional form: it may save a result, the version of
        which `versioned` sets afterwards.
        """
        if not self.joint and any(map(requires_grad, functional.flat_outs)):
            return functional
        made = without_writing(functional, resolve(call.symbol), self.expand)
        if made is None or not saves_argument(made):
            return made or functional
        old = made.flat_args[0]
        # Autograd would save the argument, which the epilogue writes: the backward would raise.
        copy = self.made(call, CLONE, (old,), call.context)
        return reexpand(made, {old.name: copy}, self.expand, self.tags)

    def expanded(
        self, bare: BoundSymbol, wishes: Sequence[str], outs: Sequence[str] = ()
    ) -> BoundSymbol:
        """``bare`` with the facts of its expansion, outputs named like ``wishes``, then ``outs``.

        :raises Unsuitable: if it cannot be expanded, or writes.
        """
        try:
            self.trace.language.resolve(bare.symbol)
            facts = self.expand.require(bare).value(bare)
        except TjError as error:
            raise Unsuitable(f"{bare.symbol}: {error}") from error
        if facts.effects.mutates or facts.effects.rebinds:
            raise Unsuitable(f"{bare.symbol} still writes")
        names = [*map(self.editor.fresh, wishes), *outs]
        return bind_outputs(
            bare, facts, lambda i: names[i] if i < len(names) else self.editor.fresh("v")
        )
