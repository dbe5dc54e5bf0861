"""Service of a session for PyTorch's symbols: names, expansions and gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Expanded,
    PluginError,
    RuleTable,
    Services,
    Symbol,
    TensorProxy,
    TjError,
)

from tj_torch.ops.context.ambient import autocast_devices
from tj_torch.ops.context.entering import spellings
from tj_torch.ops.expansion import kinds
from tj_torch.ops.expansion.autograd_operators import Observed, observed
from tj_torch.ops.expansion.operations import expand_operation
from tj_torch.ops.expansion.unseen_writes import writes_unseen
from tj_torch.ops.facts import denials, overwrites, refusals, stateless, wiring
from tj_torch.ops.memo.memo import Memo
from tj_torch.ops.naming.names import Names
from tj_torch.ops.naming.resolve import resolve
from tj_torch.ops.settings import flags
from tj_torch.ops.settings.modes import Modes
from tj_torch.ops.sizes.program import Sizes
from tj_torch.ops.sizes.shape_env import shape_environment

if TYPE_CHECKING:
    import torch
    from tj_core.extend import Context

    from tj_torch.ops.expansion.derive import Derivation, Slot
    from tj_torch.ops.expansion.expansion import Expansion

__all__ = ["TorchDialects", "rule_tables"]

NAMESPACES = ("torch", "aten")
FUNCTIONAL = (
    "builtins.getattr",
    "builtins.getattr.inverse",
    "tj.copied_back",
    "tj.float32s",
    "tj.float64s",
    "tj.joined",
    "tj.versioned",
    "tj.with_strides",
    "tj.with_value",
)
"""Symbols of calls in functional programs, see `tj_torch.functionalize`."""
NUMBERS = ("operator", "math")
"""Namespaces of functions on Python numbers, with which sizes are computed."""


class TorchDialects:
    """Names and expansions of one session; the session's rule in table ``expand``.

    ``tables`` are the session's rule tables, set once it has started.
    """

    def __init__(self, memo_size: int) -> None:
        self.names = Names()
        self.memo = Memo(memo_size)
        self.sizes = Sizes()
        self.tables: Mapping[str, RuleTable[Any]] = {}

    @staticmethod
    def of(session: Services) -> TorchDialects:
        """Service of ``session``.

        :raises PluginError: if another plugin has replaced the expansions.
        """
        rule = session.expand.get(Symbol(NAMESPACES[0], "add"))
        if rule is None or not isinstance(rule.value, TorchDialects):
            raise PluginError("the expansions of 'torch' are not those of tj-torch")
        if not session.config.core.memo:
            rule.value.memo.capacity = 0
        rule.value.use(session.tables)
        return rule.value

    def use(self, tables: Mapping[str, RuleTable[Any]]) -> None:
        """Use the rule tables ``tables`` of a session."""
        if tables is not self.tables:
            self.tables = tables
            self.memo.expander.denied = denials.Denied(tables[denials.DENIED])
            self.memo.expander.kinds = kinds.Kinds(tables[kinds.TENSOR_KINDS])

    @contextlib.contextmanager
    def within(self, graph: torch.fx.GraphModule) -> Iterator[None]:
        """Use the symbols of ``graph``'s shape environment in sizes inside.

        One program is compiled at a time, see `tj_torch.dispatch.dispatcher`.
        """
        sizes = Sizes(shape_environment(graph))
        try:
            with self.among(sizes):
                yield
        finally:
            sizes.close()

    @contextlib.contextmanager
    def among(self, sizes: Sizes) -> Iterator[None]:
        """Use the symbols of ``sizes`` in sizes inside."""
        outer, self.sizes = self.sizes, sizes
        try:
            yield
        finally:
            self.sizes = outer

    def modes(self) -> Modes:
        """Snapshot of the global state that expansions depend on; take one per trace."""
        return Modes.current()

    def __call__(self, call: BoundSymbol) -> Expanded:
        """Facts of ``call``, from the memo or a new expansion.

        :raises CannotExpandError: if they depend on data, or on what tj does not model.
        """
        try:
            function = resolve(call.symbol)
        except LookupError as error:
            raise CannotExpandError(f"{call.symbol} has no implementation") from error
        if call.subprograms:
            return expand_operation(call, function, self.sizes)
        return self.expand(call, function, self.modes())

    def expand(
        self,
        call: BoundSymbol,
        function: Callable[..., Any],
        modes: Modes,
        value: Any = None,
    ) -> Expanded:
        """Facts of ``call``, which runs ``function``, under ``modes``.

        ``value`` is its result at capture.
        """
        return self.memo.expand(
            function, call.args, call.kwargs, call.context, modes, self.sizes, value
        ).facts

    def expand_once(
        self, function: Callable[..., Any], args: tuple[Any, ...], context: Context
    ) -> Expansion:
        """Expansion of a call of ``function``, which is made for it and not called again."""
        return self.memo.expand_once(function, args, context, self.sizes)

    def writes_unseen(
        self, function: Callable[..., Any], args: tuple[Any, ...], context: Context
    ) -> bool:
        """Test if a call of ``function`` makes writes that autograd does not see."""
        return writes_unseen(self.memo.expander, function, args, context, self.sizes)

    def derive(
        self,
        call: BoundSymbol,
        modes: Modes,
        tangents: Mapping[Slot, TensorProxy],
        *,
        create_graph: bool = False,
        function: Callable[..., Any] | None = None,
    ) -> Derivation:
        """Gradient of ``call`` for ``tangents`` of its outputs; see `derive`.

        ``function`` is the function that it runs, if its symbol names none.

        :raises CannotExpandError: if it depends on data, or on what tj does not model.
        """
        try:
            function = function or resolve(call.symbol)
        except LookupError as error:
            raise CannotExpandError(f"{call.symbol} has no implementation") from error
        return self.memo.derive(
            function,
            call.args,
            call.kwargs,
            call.context,
            modes,
            self.sizes,
            tangents=tangents,
            create_graph=create_graph,
            value=call.outputs,
        )

    def observed(self, call: BoundSymbol, modes: Modes) -> tuple[Observed, ...] | None:
        """Operators that autograd sees in ``call``; None if unknown, or for a Python backward."""
        given = call.args, dict(call.kwargs), call.context
        try:
            function = resolve(call.symbol)
            if self.memo.expand(function, *given, modes, self.sizes).kind == "KERNEL":
                return None
            return observed(self.memo.expander, function, *given, self.sizes)
        except (LookupError, TjError):
            return None


def rule_tables(memo_size: int) -> tuple[RuleTable[Any], ...]:
    """Rule tables of PyTorch's operations, see docs/plugins.md."""
    expand: RuleTable[Any] = RuleTable("expand")
    dialects = TorchDialects(memo_size)
    for namespace in (*NAMESPACES, *NUMBERS):
        expand.set(f"{namespace}.*", dialects)
    for name in FUNCTIONAL:
        expand.set(name, dialects)
    context: RuleTable[Any] = RuleTable("context")
    for key, spelling in spellings(autocast_devices()).items():
        context.set(f"context.{key}", spelling)
    facts = (
        denials.rules(), flags.rules(), kinds.rules(), overwrites.rules(), refusals.rules(),
        stateless.rules(), wiring.rules(),
    )  # fmt: skip
    return expand, context, *facts
