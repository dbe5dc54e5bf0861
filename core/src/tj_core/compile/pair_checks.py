"""Comparison of an executor's pair with the operation, and with the gradient of its dialect.

The body of a pair's call comes from the pair's own functions, or its ``meta``, so a comparison with
the body would not find their faults. Each run of a forward is therefore compared with the
operation, and its backward with the operation's gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tj_core.analysis.results import unequal
from tj_core.ir.proxy import TensorProxy
from tj_core.ir.symbol import FORWARD, Symbol
from tj_core.ir.tree import leaves

if TYPE_CHECKING:
    from tj_core.contract.executors import Executor, Pair
    from tj_core.ir.runtime import RuntimeValues
    from tj_core.ir.trace import BoundSymbol, Trace

__all__ = ["PairCheck", "pair_check"]

STEPS = 4
"""Rounded operations in a row that the tolerance allows for, since a formula may differ."""


@dataclass(frozen=True)
class PairCheck:
    """The check of ``call``, the forward of ``pair``, against ``operation``.

    ``derived`` is the dialect's gradient of a function, see `RuntimeValues`.
    """

    call: BoundSymbol
    pair: Pair
    operation: Callable[..., Any]
    derived: Callable[..., tuple[Any, Sequence[Any], Mapping[int, Any]]]
    runtime: tuple[RuntimeValues, ...]

    def problems(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Iterator[str]:
        """Differences of ``result``, and of the gradients for some tangents that this method makes.

        ``args`` and ``kwargs`` are copies of the arguments, made before the run.
        """
        outputs, saved = result[0], tuple(map(self.copied, result[1]))
        expected, tangents, gradients = self.derived(self.operation, args, kwargs)
        for problem in unequal(expected, outputs, self.call.outputs[0], self.runtime):
            yield f"{problem}, as the operation computes"
            return
        found = self.pair.backward(saved, *tangents)
        names = self.parameters(args, kwargs)
        for name, value, mine in zip(names, names.values(), found, strict=False):
            pairs = zip(_flat(value), _flat(mine), strict=False)
            for argument, gradient in pairs:
                wanted = gradients.get(id(argument))
                if wanted is not None and gradient is not None:
                    yield from self.compared(name, gradient, wanted)

    def compared(self, name: str, found: Any, wanted: Any) -> Iterator[str]:
        """Differences of a gradient from the dialect's own."""
        for dialect in self.runtime:
            p = dialect.observe(wanted)
            mine = dialect.observe(found)
            if not isinstance(p, TensorProxy) or not isinstance(mine, TensorProxy):
                continue
            if (mine.shape, mine.dtype) == (p.shape, p.dtype):
                if (problem := dialect.differs(found, wanted, STEPS)) is not None:
                    yield f"its backward's gradient of {name!r} {problem}, as PyTorch's gradient is"
                return

    def copied(self, value: Any) -> Any:
        """A copy of a saved value, which the backward of the program reads again."""
        dialect = next((d for d in self.runtime if d.observe(value) is not None), None)
        return value if dialect is None else dialect.copy(value)

    def parameters(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, in the order of the backward's gradients."""
        try:
            bound = inspect.signature(self.pair.forward).bind(*args, **kwargs)
        except (TypeError, ValueError):
            # Python knows no signature of many functions in C.
            return dict(enumerate(args))  # type: ignore[arg-type]
        bound.apply_defaults()
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            several = bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            found |= {f"{name}[{i}]": v for i, v in enumerate(value)} if several else {name: value}
        return found


def _flat(value: Any) -> list[Any]:
    return list(leaves(value)) if isinstance(value, list | tuple) else [value]


def pair_check(call: BoundSymbol, trace: Trace, executors: Sequence[Executor]) -> PairCheck | None:
    """The check of ``call`` in ``trace`` if it is the forward of an executor's pair, else None.

    None as well for a pair with state, which a further run would change, and on tensor subclasses.
    """
    if call.symbol.variant != FORWARD or call.on_subclass:
        return None
    executor = next((e for e in executors if e.name == call.executor), None)
    operation = Symbol.parse(call.symbol.name)
    rule = executor.claims.get(operation) if executor is not None else None
    if rule is None or rule.value.pair is None or rule.value.state is not None:
        return None
    runtime = trace.language.runtime
    derived = next((d.derived for d in runtime if d.derived is not None), None)
    if derived is None:
        return None
    return PairCheck(call, rule.value.pair, trace.language.resolve(operation), derived, runtime)
