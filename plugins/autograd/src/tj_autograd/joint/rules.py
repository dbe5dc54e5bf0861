"""Gradient rules: a forward that returns values to save, and the backward that uses them.

A rule is two functions in plain PyTorch, like an ``autograd.Function`` without the class::

    def forward(x, normalized_shape, weight=None, bias=None, eps=1e-05):
        out, mean, rstd = torch.native_layer_norm(x, normalized_shape, weight, bias, eps)
        return out, (x, weight, bias, mean, rstd)

    def backward(saved, grad):
        ...
        return grad_x, None, grad_weight, grad_bias

Both are run on fake tensors and become the bodies of the forward and the backward call, so that
executors may claim these whole or in parts.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import (
    BoundSymbol,
    CannotExpandError,
    Context,
    Decline,
    NumberProxy,
    Pair,
    PluginError,
    Proxy,
    Rule,
    RuleTable,
    TensorProxy,
    ask,
    evaluate_size,
    leaves,
    map_tree,
    meta_text,
    requires_grad,
    size_symbols,
)
from tj_core.internal import FUNCTION, OPTIONAL_FUNCTION, check_fields
from tj_torch.extend import (
    Derivation,
    Expander,
    Expansion,
    ExpansionError,
    Sizes,
    Slot,
    is_symbolic,
    number_text,
    to_core_tree,
)
from tj_torch.internal import instance

__all__ = [
    "GradRule",
    "apply_rule",
    "check_gradients",
    "check_outputs",
    "draws_elsewhere",
    "expanded",
    "find_rule",
    "fitting",
    "per_argument",
    "plugins_rules",
    "returned_pair",
]


@dataclass(frozen=True, slots=True)
class GradRule:
    """The gradient of one operation, written in plain PyTorch.

    ``forward`` takes the operation's arguments and returns a pair: the operation's results, and a
    sequence of values to save. A saved value that is an argument or a result of the operation costs
    no memory of its own. ``backward(saved, *tangents)`` takes that sequence as a tuple, and a
    tangent for each tensor that the operation returns, None for a result that has none. It returns
    a gradient for each parameter of ``forward``, in order, as ``autograd.Function.backward`` does:
    None where there is none, a sequence for a list of tensors. Trailing Nones may be left out for
    arguments that need no gradient. A gradient has the shape and the data type of its argument.
    ``check`` returns True, or a `Decline` with the reason why the rule does not apply to a call;
    without ``check`` the rule applies to all calls of the operation.
    """

    forward: Callable[..., tuple[Any, Sequence[Any]]]
    backward: Callable[..., Sequence[Any]]
    check: Callable[[BoundSymbol], bool | Decline] | None = None

    def __post_init__(self) -> None:
        check_fields(self, forward=FUNCTION, backward=FUNCTION, check=OPTIONAL_FUNCTION)


def plugins_rules() -> RuleTable[GradRule]:
    """Make the rule table ``grad``, which holds the gradient rules of other plugins."""
    return RuleTable("grad", rule_type=GradRule)


def find_rule(
    call: BoundSymbol, rules: RuleTable[GradRule]
) -> tuple[Rule[GradRule] | None, tuple[tuple[str, str], ...]]:
    """Find the rule in ``rules`` that applies to ``call``.

    Returns the rule, or None, and the ``(plugin, reason)`` pairs of rules that declined.
    """
    rule = rules.of(call)
    if rule is None:
        return None, ()
    reason = ask(f"the gradient rule of plugin {rule.plugin!r}", rule.value.check, call)
    return (rule, ()) if reason is None else (None, ((rule.plugin, reason),))


def apply_rule(
    rule: Rule[GradRule],
    call: BoundSymbol,
    tangents: Mapping[Slot, TensorProxy],
    expander: Expander,
    sizes: Sizes,
) -> Derivation:
    """Derive the gradient of ``call`` by running the functions of ``rule`` on fake tensors.

    ``tangents`` maps slots of results to their tangents. ``sizes`` holds the symbols in the
    program's sizes.

    :raises PluginError: if the rule's functions do not fit the call.
    :raises CannotExpandError: if they depend on data.
    """
    return _Application(rule, call, tangents, expander, sizes).derivation()


@dataclass(frozen=True, slots=True)
class _Number:
    """A saved number that depends on sizes: an expression of their symbols."""

    text: str


@dataclass
class _Application:
    """A rule applied to a call."""

    rule: Rule[GradRule]
    call: BoundSymbol
    tangents: Mapping[Slot, TensorProxy]
    expander: Expander
    sizes: Sizes

    def derivation(self) -> Derivation:
        kept, forward = self.forward()
        intermediates = tuple(forward.outputs[1])
        slots = list(dict.fromkeys(x for x in leaves(kept) if isinstance(x, Slot)))
        numbers = list(dict.fromkeys(x for x in leaves(kept) if isinstance(x, _Number)))
        names = tuple(dict.fromkeys(name for n in numbers for name in size_symbols(n.text)))
        given = [
            *map(self.places(forward).__getitem__, slots),
            *(NumberProxy(name, "int", name) for name in names),
            *self.tangents.values(),
        ]
        positions, backward = self.backward(kept, slots, numbers, given)
        return Derivation(
            forward,
            intermediates,
            tuple(slots),
            tuple(self.tangents),
            backward,
            tuple(positions),
            numbers=names,
        )

    def places(self, forward: Expansion) -> dict[Slot, TensorProxy]:
        """Proxies of all values that may be saved, by slot."""
        intermediates = forward.outputs[1]
        return {
            **{Slot("arg", i): p for i, p in enumerate(self.call.flat_args)},
            **{Slot("out", i): p for i, p in enumerate(self.call.flat_outs)},
            **{Slot("intermediate", i): p for i, p in enumerate(intermediates)},
        }

    # ------------------------------------------------------------------ forward

    def forward(self) -> tuple[Any, Expansion]:
        """Expand the rule's forward; return the saved values and the expansion.

        The expansion returns the outputs and the intermediates: saved tensors that are neither
        arguments nor results. In the saved values a `Slot` stands for a tensor, a `_Number` for a
        number that depends on sizes.
        """
        kept: list[Any] = []

        def run(*args: Any, **kwargs: Any) -> Any:
            returned = self.rule.value.forward(*args, **kwargs)
            outputs, saved = returned_pair(returned)
            places = _places((args, kwargs), "arg") | _places(outputs, "out")
            intermediates: dict[int, torch.Tensor] = {}

            def keep(value: Any) -> Any:
                if is_symbolic(value):
                    # A number of the sizes of this run on fake tensors: kept as it is, it would be
                    # wrong for others.
                    return _Number(number_text(value))
                if not isinstance(value, torch.Tensor):
                    return value
                if id(value) not in places:
                    places[id(value)] = Slot("intermediate", len(intermediates))
                    intermediates[id(value)] = value
                return places[id(value)]

            # The expander may call this more than once.
            kept[:] = [tuple(_where_needed(to_core_tree(x, keep), x) for x in saved)]
            return outputs, tuple(intermediates.values())

        made = self.expand(run, self.call.args, self.call.kwargs, self.call.context)
        check_outputs(self.call, made.outputs[0], self.whose)
        return kept[0], made

    # ------------------------------------------------------------------ backward

    def backward(
        self,
        kept: Any,
        slots: Sequence[Slot],
        numbers: Sequence[_Number],
        given: Sequence[Proxy],
    ) -> tuple[list[int], Expansion]:
        """Expand the rule's backward over saved values and tangents.

        Returns the flat indices of the arguments that get a gradient, and the expansion.
        """
        positions: list[int] = []

        def run(*values: Any) -> tuple[torch.Tensor, ...]:
            at: dict[Any, Any] = dict(zip(slots, values, strict=False))
            at |= _computed(numbers, given, values)
            saved = map_tree(lambda x: at.get(x, x) if isinstance(x, Slot | _Number) else x, kept)
            tangents = dict(
                zip(self.tangents, values[len(values) - len(self.tangents) :], strict=True)
            )
            outs = [Slot("out", i) for i in range(len(self.call.flat_outs))]
            returned = self.rule.value.backward(saved, *(tangents.get(s) for s in outs))
            positions.clear()
            found = []
            for index, gradient in per_argument(self.call, self.rule.value, returned):
                if gradient is not None:
                    positions.append(index)
                    found.append(gradient)
            return tuple(found)

        # As in eager: the engine runs backwards with grad mode off, unless `create_graph=True`.
        context = self.call.context.with_("grad", False)
        made = self.expand(run, tuple(given), (), context)
        found = dict(zip(positions, leaves(made.outputs), strict=True))
        check_gradients(self.call, found, self.whose)
        return positions, made

    @property
    def whose(self) -> str:
        """Name of the rule in error messages."""
        rule = self.rule
        return f"the gradient rule for {rule.key!r} of plugin {rule.plugin!r} ({rule.origin})"

    def expand(self, *call: Any) -> Expansion:
        made = expanded(self.expander, self.sizes, self.call, self.whose, *call)
        if made.body is not None and any(map(draws_elsewhere, made.body.calls)):
            raise CannotExpandError("its body draws random numbers in another order than it says")
        return made


def draws_elsewhere(call: BoundSymbol) -> bool:
    """Check for an in-place random call whose body draws into memory of another layout.

    A body replaces the mutated tensor by a new, contiguous one. Generators fill memory in its
    order, so with other strides the elements get other numbers.
    """
    if not any(r.startswith("random") for r in call.effects.ordered):
        return False
    tensors = [p for p in (*call.flat_args[:1], *call.flat_outs[:1]) if isinstance(p, TensorProxy)]
    return len(tensors) == 2 and tensors[0].strides != tensors[1].strides


def _where_needed(kept: Any, value: Any) -> Any:
    """Return ``kept`` if it holds a slot or a `_Number`, else the saved ``value`` itself."""
    return kept if any(isinstance(x, Slot | _Number) for x in leaves(kept)) else value


def _computed(
    numbers: Sequence[_Number], given: Sequence[Proxy], values: Sequence[Any]
) -> dict[_Number, Any]:
    """Evaluate ``numbers`` from the values of the symbols among ``given``."""
    pairs = zip(given, values, strict=True)
    symbols = {p.expr: v for p, v in pairs if isinstance(p, NumberProxy)}
    return {n: evaluate_size(n.text, symbols.__getitem__) for n in numbers}


def _places(tree: Any, kind: Any) -> dict[int, Slot]:
    """Map the id of each tensor in ``tree`` to the slot of its first occurrence."""
    tensors = [x for x in leaves(tree) if isinstance(x, torch.Tensor)]
    return {id(t): Slot(kind, i) for i, t in reversed(list(enumerate(tensors)))}


# ---------------------------------------------------------------------------- what must fit


class Misfit(Exception):
    """The functions of a rule or pair do not fit the call."""


@contextlib.contextmanager
def fitting(call: BoundSymbol, whose: str) -> Iterator[None]:
    """Turn a `Misfit` raised inside into a `PluginError` that names ``whose`` functions.

    :raises PluginError: if a `Misfit` is raised inside.
    """
    try:
        yield
    except Misfit as misfit:
        raise _unfit(call, whose, str(misfit)) from misfit


def _unfit(call: BoundSymbol, whose: str, problem: str) -> PluginError:
    return PluginError(f"{whose} does not fit: {problem}", source=call.source)


def expanded(
    expander: Expander,
    sizes: Sizes,
    call: BoundSymbol,
    whose: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Any,
    context: Context,
) -> Expansion:
    """Run `Expander.expand` on ``fn``, a function of rule or pair ``whose``, for ``call``.

    Expressions of sizes come in the program's symbols.

    :raises PluginError: if the function fails or does not fit.
    :raises CannotExpandError: if it depends on data.
    """
    try:
        made = expander.expand(fn, args, kwargs, context, sizes)
    except ExpansionError as error:
        cause = error.__cause__
        problem = str(cause) if isinstance(cause, Misfit) else error.message
        raise _unfit(call, whose, problem) from error
    if made.made:
        raise CannotExpandError("what it returns has sizes that depend on data")
    return instance(made, (args, kwargs), made.symbols, sizes)


def returned_pair(returned: Any) -> tuple[Any, Any]:
    """Check that a forward returned ``(outputs, saved)``, and return both."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise Misfit("its forward must return a pair, (outputs, saved)")
    return returned


def per_argument(
    call: BoundSymbol, rule: GradRule | Pair, returned: Any
) -> Iterator[tuple[int, Any]]:
    """Yield the flat index and the gradient of each argument that requires grad."""
    if not isinstance(returned, tuple | list):
        raise Misfit("its backward must return a sequence with a gradient per parameter")
    try:
        bound = inspect.signature(rule.forward).bind(*call.args, **dict(call.kwargs))
    except (TypeError, ValueError) as error:  # other parameters, or no signature
        raise Misfit(f"its forward has not the operation's parameters: {error}") from error
    names = list(bound.signature.parameters)
    if len(returned) > len(names):
        raise Misfit(f"{len(returned)} gradients for the {len(names)} parameters of its forward")
    by_name = dict(zip(names, returned, strict=False))
    index = 0
    for name, argument in bound.arguments.items():
        proxies = [p for p in leaves(argument) if isinstance(p, Proxy)]
        # `autograd.Function` raises for too few gradients; here trailing Nones may be left out.
        if name not in by_name and any(map(requires_grad, proxies)):
            raise Misfit(
                f"its backward returns {len(returned)} gradients, none for {name!r}, which needs "
                "one (None, if it has none)"
            )
        parts = _parts(name, by_name.get(name), len(proxies))
        for proxy, part in zip(proxies, parts, strict=True):
            if requires_grad(proxy):
                yield index, part
            index += 1


def _parts(name: str, gradient: Any, count: int) -> list[Any]:
    """Split the gradient of one parameter into one for each of its ``count`` tensors."""
    # None for a list of tensors stands for a None for each of them.
    parts = list(gradient) if isinstance(gradient, tuple | list) else [gradient] * count
    wrong = [p for p in parts if not isinstance(p, torch.Tensor | TensorProxy | None)]
    if wrong:
        raise Misfit(f"its backward returns a {type(wrong[0]).__name__} as a gradient of {name!r}")
    if len(parts) != count:
        raise Misfit(f"{len(parts)} gradients for the {count} tensors of {name!r}")
    return parts


def check_outputs(call: BoundSymbol, outputs: Any, whose: str) -> None:
    """Check that a forward returns what the operation returns, metadata included.

    :raises PluginError: if it does not.
    """
    mine = [p for p in leaves(outputs) if isinstance(p, Proxy)]
    same = len(mine) == len(call.flat_outs) and all(
        a.replace(requires_grad=requires_grad(b)).same_meta(b)
        for a, b in zip(mine, call.flat_outs, strict=True)
    )
    if not same:
        said = [", ".join(map(meta_text, found)) for found in (mine, call.flat_outs)]
        problem = f"its forward returns ({said[0]}), the operation ({said[1]})"
        raise _unfit(call, whose, problem)


def check_gradients(call: BoundSymbol, gradients: Mapping[int, Any], whose: str) -> None:
    """Check that each gradient has the shape and data type of its argument.

    :raises PluginError: if one has not.
    """
    for index, gradient in gradients.items():
        argument = call.flat_args[index]
        assert isinstance(argument, TensorProxy)
        if (gradient.shape, gradient.dtype) != (argument.shape, argument.dtype):
            problem = (
                f"its backward returns {meta_text(gradient)!r} for argument "
                f"{argument.name!r}, {meta_text(argument)!r}"
            )
            raise _unfit(call, whose, problem)
