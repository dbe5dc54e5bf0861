"""The transform: layers with constant weights multiply in int8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tj_core.extend import (
    BoundSymbol,
    CallEditor,
    Decline,
    Executor,
    Outcome,
    PassContext,
    Proxy,
    Replacement,
    RuleTable,
    Stage,
    Tag,
    TensorProxy,
    Trace,
    TraceEditor,
    Transform,
    ask,
)

from tj_onednn.int8.kernels import DYNAMIC, QUANTISE, WEIGHTS
from tj_onednn.int8.layers import (
    DECLINED,
    DTYPES,
    LAYERS,
    NO_CONSTANT,
    STATIC,
    Layer,
    layer,
    saturates,
    unfit,
    unfit_for_weights,
    unfit_weight,
)
from tj_onednn.layers import takes_gradients
from tj_onednn.names import INT8, lost

if TYPE_CHECKING:
    from tj_onednn.options import Options

__all__ = ["chosen", "quantising", "tag"]

CASTS = ("torch.Tensor.to", "aten._to_copy.default")
"""Symbols of calls that change the data type of a value."""

TRANSPOSITIONS = ("torch.t", "aten.t.default", "torch.Tensor.T", "torch.Tensor.mT")
"""Symbols of calls that transpose a matrix."""


def tag() -> Tag:
    """Make the tag of layers that stay in floating point."""
    said = "the reason why the layer does not run in int8"
    return Tag(DECLINED, said, carriers=frozenset({"call"}), into_body=False)


def quantising(options: Options) -> Transform:
    """Make the transform for the layers that ``options`` choose.

    It comes after gradients and subclasses: a program that has neither passes these stages by.
    """

    def apply(trace: Trace, context: PassContext) -> Trace | Outcome:
        if not any(layer(call) is not None for call in trace.calls):
            return trace
        if takes_gradients(trace):
            return context.decline(Decline("the program takes gradients, and int8 has none"))
        return _Quantising(options, trace, context).quantised()

    return Transform("onednn-int8", apply, after=Stage.LOWERED, reads=frozenset({STATIC}))


@dataclass
class _Quantising:
    """One program on its way to int8; ``weights`` are the rounded weights by name and layout."""

    options: Options
    trace: Trace
    context: PassContext
    weights: dict[tuple[str, bool], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.makers = {p.name: call for call in self.trace.calls for p in call.flat_outs}
        self.writes = any(call.effects.mutates for call in self.trace.calls)

    def quantised(self) -> Trace:
        """The program with the chosen layers in int8."""
        rules: RuleTable[Any] = RuleTable("rewrite")
        for name in LAYERS:
            rules.set(name, self.rule)
        made = self.context.rewrite(self.trace, rules, into_bodies=False, into_subprograms=False)
        return made if self.writes else self.weights_first(made)

    def weights_first(self, trace: Trace) -> Trace:
        """``trace`` with weights rounded at its start, so that no region ends at such a call."""
        given = {p.name for p in trace.inputs}

        def late(call: BoundSymbol) -> bool:
            rounds = call.symbol.qualname == QUANTISE
            return not (rounds and all(p.name in given for p in call.flat_args))

        editor = TraceEditor(trace, self.context.tags)
        editor.append(*sorted(trace.calls, key=late))
        return editor.done()

    def rule(self, call: BoundSymbol, edit: CallEditor) -> Replacement | None:
        """Replace ``call`` by its form in int8, or note why it stays."""
        operands = layer(call)
        if operands is None:
            return None
        constant = self.constant(operands.weight, operands.transposed)
        reason = self.reason(call, operands, constant)
        if reason is not None or constant is None:
            return Replacement((call.replace(tags=call.tags.add(DECLINED, reason)),))
        before, (weight, scales) = self.rounded(*constant, edit)
        bias = operands.bias
        if bias is not None and bias.ndim == 2:
            flat = edit.call("aten.view.default", bias, [bias.shape[1]])
            before, bias = (*before, flat), flat.outputs
        symbol = WEIGHTS if self.narrow(call) else DYNAMIC
        (old,) = call.flat_outs
        made = edit.call(symbol, operands.x, weight, scales, bias, outputs=(old.name,))
        if any(_fuses(executor, made) for executor in self.context.executors):
            made = made.replace(tags=made.tags.add(DECLINED, "an executor fuses its parts"))
        return Replacement((*before, made))

    def reason(self, call: BoundSymbol, operands: Layer, constant: Any) -> str | None:
        """Reason why ``call`` stays as it is, or None."""
        path, narrow = _path(call), self.narrow(call)
        if not narrow and not chosen(path, self.options.int8):
            return f"no pattern chooses the module {path!r}"
        reason = lost(INT8) or unfit(call, operands)
        if reason is None:
            reason = unfit_weight(*constant) if constant is not None else NO_CONSTANT
        return reason or (unfit_for_weights(operands) if narrow else saturates())

    def narrow(self, call: BoundSymbol) -> bool:
        """Decide if the weight alone is to be rounded."""
        return chosen(_path(call), self.options.int8_weights)

    def constant(self, value: Proxy, transposed: bool) -> tuple[TensorProxy, bool] | None:
        """The module's tensor that ``value`` is, perhaps cast or transposed; else None."""
        maker = self.makers.get(value.name)
        if maker is not None and maker.flat_args:
            source = maker.flat_args[0]
            if maker.symbol.qualname in CASTS and _may_be_left_out(source, value):
                return self.constant(source, transposed)
            if maker.symbol.qualname in TRANSPOSITIONS:
                return self.constant(source, not transposed)
        if isinstance(value, TensorProxy) and STATIC in value.tags:
            return value, transposed
        return None

    def rounded(
        self, weight: TensorProxy, transposed: bool, edit: CallEditor
    ) -> tuple[tuple[BoundSymbol, ...], Any]:
        """The calls that round ``weight``, if it needs any, and its integers and scales."""
        if weight.dtype.name == "int8":
            return (), (weight, None)
        key = weight.name, transposed
        if key in self.weights and not self.writes:
            return (), self.weights[key]
        names = tuple(edit.fresh(f"{weight.name}_{end}") for end in ("int8", "scales"))
        made = edit.call(QUANTISE, weight, transposed, outputs=names)
        self.weights[key] = made.outputs
        return (made,), made.outputs


def _fuses(executor: Executor, call: BoundSymbol) -> bool:
    """Decide if all parts of ``call`` may stand in a region of ``executor``."""
    if executor.fusion is None or call.body is None:
        return False
    owner, can_fuse = executor.owner, executor.fusion.can_fuse
    return all(ask(owner, can_fuse, inner) is None for inner in call.body.calls)


def _may_be_left_out(source: Proxy, cast: Proxy) -> bool:
    """Decide if a cast only rounds to fewer digits, which is left out: int8 has fewer still."""
    if not isinstance(source, TensorProxy) or not isinstance(cast, TensorProxy):
        return False
    return source.dtype.name in (*DTYPES, "int8") and cast.dtype.name in DTYPES


def _path(call: BoundSymbol) -> str:
    """The path of the module that ``call`` ran in."""
    return call.source.module_path if call.source is not None else ""


def chosen(path: str, patterns: Sequence[str]) -> bool:
    """Decide if ``patterns`` choose the module at ``path``: the last pattern that fits decides.

    A pattern is one of the shell (``blocks.*.up``); after ``!`` it excludes.
    """
    taken = False
    for pattern in patterns:
        if fnmatchcase(path, pattern.removeprefix("!")):
            taken = not pattern.startswith("!")
    return taken
