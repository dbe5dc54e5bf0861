"""Made-up programs of the dialect of `tj_core.testing.numeric`, with two more operations.

A generator of choices decides, such as a hypothesis strategy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tj_core.compile.codegen import generate
from tj_core.contract.dialects import Dialect
from tj_core.contract.expansion import Expanded, bind_outputs
from tj_core.contract.rules import RuleTable
from tj_core.edit.bodies import formals
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.names import Namer
from tj_core.ir.tags import Tag, TagRegistry
from tj_core.ir.trace import Body, BoundSymbol, Trace
from tj_core.source import Source
from tj_core.testing.numeric import MEANING, call, expansions, vector
from tj_core.text.language import Language
from tj_core.verify.verifier import verify

if TYPE_CHECKING:
    from tj_core.ir.symbol import Symbol

__all__ = [
    "ARITY",
    "LANGUAGE",
    "SIZE",
    "TAGS",
    "WORDS",
    "checked",
    "expand",
    "made_up",
    "results",
]

T = TypeVar("T")

TAGS = TagRegistry(
    ("test", tag)
    for tag in (
        Tag("A", carriers=frozenset({"proxy", "call", "trace"})),
        Tag("B", through_views=True),
        Tag("C", into_body=False, to_replacement=False),
    )
)
"""Tags with each of the properties that passes look at."""

SIZE = 4
"""Number of elements of the inputs."""

ARITY = {"add": 2, "mul": 2, "neg": 1, "axpy": 3, "poly": 2, "same": 1, "noise": 1, "fill_": 1,
         "split": 1, "none": 1}  # fmt: skip
"""Operations of made-up programs, with the number of vectors that each takes."""


def poly(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """Two levels of body: ``x*(y*y + y) + y``, and an output that is an argument."""
    inner = [a * a + a for a in y]
    return [a * b + c for a, b, c in zip(x, inner, y, strict=True)], x


WORDS: dict[str, Callable[..., Any]] = {**MEANING, "poly": poly, "none": lambda x: None}
"""Meaning of each operation in Python."""

expand: RuleTable[Any] = RuleTable("expand") | expansions


@expand.register("num.poly")
def _poly(given: BoundSymbol) -> Expanded:
    inputs = formals(given)
    x, y = (inputs[p.name] for p in given.flat_args)
    args = (y, y, y), (x, vector("_0", SIZE), y)
    calls = []
    for i, (a, b, c) in enumerate(args):
        bare = call("axpy", a, b, c)
        names = [f"_{i}"]
        calls.append(bind_outputs(bare, expand.require(bare).value(bare), names.__getitem__))
    out = calls[1].outputs
    alias = Effects(aliases=(Alias(1, "arg", 0, True),))
    body = Body(tuple(inputs.values()), tuple(calls), (out, x))
    return Expanded((out.replace(name="_0"), x.replace(name="_1")), alias, body)


@expand.register("num.none")
def _none(given: BoundSymbol) -> Expanded:
    return Expanded(None)


def _speller(value: Any) -> str:
    return "contextlib.nullcontext()"


LANGUAGE = Language(
    [Dialect("num", ("from tj_core.testing.numeric import num",), lambda s: WORDS[s.name])],
    {"grad": _speller, "mode": _speller},
)


def made_up(choose: Callable[[Sequence[T]], T], length: int, *, mutation: bool = True) -> Trace:
    """Program with two inputs and ``length`` calls, expanded; some of its values are returned.

    ``choose`` takes one of several. Without ``mutation`` nothing is written.
    """
    pick: Callable[[Sequence[Any]], Any] = choose
    namer = Namer(set())
    values: list[Any] = [vector(namer(n), SIZE) for n in ("x", "y")]
    inputs, calls = tuple(values), []
    names = [n for n in ARITY if mutation or n != "fill_"]
    for number in range(length):
        name = pick(names)
        sized = [v for v in values if v.shape == (SIZE,)]
        args = [pick(sized) for _ in range(ARITY[name])]
        more = {"fill_": (2.0,), "split": (pick(range(1, SIZE)),)}.get(name, ())
        bare = call(name, *args, *more, source=Source("f.py", number + 1, f"call {name}"))
        bound = bind_outputs(bare, expand.require(bare).value(bare), lambda i: namer("t"))
        calls.append(bound)
        values += bound.flat_outs
    outputs = [pick(values) for _ in range(pick(range(5)))]
    return Trace(inputs, tuple(calls), {"r": (outputs, None)}, language=LANGUAGE)


def checked(trace: Trace, level: int = 2) -> Trace:
    """``trace``, verified."""
    verify(trace, level=level, tags=TAGS, expand=expand)
    return trace


def results(
    trace: Trace, implementations: Mapping[Symbol, Callable[..., Any]] | None = None
) -> tuple[Any, list[list[float]]]:
    """The results of the program, and its inputs after the run."""
    arguments = [[1.0, 2.0, -3.0, 0.5], [0.25, -1.0, 2.0, 3.0]]
    return copy.deepcopy(generate(trace, implementations).function(*arguments)), arguments
