"""Programs with operand programs, in the dialect of `tj_core.testing.numeric`.

Three more operations take programs: ``once``, ``twice`` and ``either``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tj_core.compile.codegen import generate
from tj_core.contract.dialects import Dialect
from tj_core.contract.expansion import bind_outputs
from tj_core.ir.tags import Tag, TagRegistry
from tj_core.ir.trace import BoundSymbol, Subprogram, Trace
from tj_core.testing.numeric import MEANING, call, expansions, vector
from tj_core.text.language import Language
from tj_core.verify.verifier import verify

if TYPE_CHECKING:
    from tj_core.ir.proxy import Proxy

__all__ = ["LANGUAGE", "TAGS", "WORDS", "X", "Y", "Z", "body", "once", "program", "run", "whole"]

X, Y, Z = (vector(n, 2) for n in "xyz")
TAGS = TagRegistry([("test", Tag("HOT")), ("test", Tag("COLD", into_body=False))])
WORDS: dict[str, Callable[..., Any]] = {
    **MEANING,
    "once": lambda body, *args: body(*args),
    "twice": lambda body, x: body(body(x)),
    "either": lambda flag, yes, no, *args: (yes if flag else no)(*args),
}
"""Meaning of each operation in Python."""

LANGUAGE = Language(
    [Dialect("num", ("from tj_core.testing.numeric import num",), lambda s: WORDS[s.name])]
)


def program(
    name: str,
    inputs: Sequence[Proxy],
    *steps: Sequence[Any],
    outputs: Sequence[str] | None = None,
    **more: Any,
) -> Trace:
    """A program of ``steps``, operation and names of arguments; the n-th result is ``t<n>``."""
    values = {p.name: p for p in inputs}
    calls = []
    for n, (operation, *args) in enumerate(steps):
        bare = call(operation, *(values.get(a, a) for a in args))
        facts = expansions.require(bare).value(bare)
        bound = bind_outputs(bare, facts, partial(_name, n))
        values.update({p.name: p for p in bound.flat_outs})
        calls.append(bound)
    returned = tuple(values[o] for o in outputs or [f"t{len(steps) - 1}"])
    return Trace(tuple(inputs), tuple(calls), returned, name, language=LANGUAGE, **more)


def _name(step: int, output: int) -> str:
    return f"t{step}_{output}" if output else f"t{step}"


def body(
    *steps: Sequence[Any],
    inputs: Sequence[Proxy] = (X,),
    outputs: Sequence[str] | None = None,
    operands: tuple[int | None, ...] | None = None,
    returns: bool = True,
) -> Subprogram:
    """A program of ``steps`` as an operand, for the first arguments of its call."""
    made = program("body", inputs, *steps, outputs=outputs)
    return Subprogram(made, tuple(range(len(inputs))) if operands is None else operands, returns)


def once(region: Subprogram, *args: Any, outputs: Any = Z, **more: Any) -> BoundSymbol:
    """A call of ``region``, once."""
    return call("once", region, *args, outputs=(outputs,), **more)


def whole(
    *calls: BoundSymbol, inputs: Sequence[Proxy] = (X, Y), outputs: Sequence[Proxy] = (Z,)
) -> Trace:
    """The program of ``calls``, verified."""
    trace = Trace(tuple(inputs), calls, tuple(outputs), language=LANGUAGE)
    verify(trace, level=2, tags=TAGS, expand=expansions)
    return trace


def run(trace: Trace, *more: Any, **implementations: Any) -> Any:
    """Results of ``trace`` for two fixed vectors."""
    return generate(trace, *more, **implementations).function([1.0, 2.0], [3.0, 5.0])
