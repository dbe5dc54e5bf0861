"""A tiny dialect of vectors (lists of floats), with a frontend and executors: tj without torch.

It shows that the core works without PyTorch, and is small enough to read whole: each operation has
a meaning in Python and an expansion, and the composite one has a body. Use `NumericPlugin` as an
inline plugin: ``Session(plugins=[NumericPlugin()])``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tj_core.contract.decline import Decline
from tj_core.contract.dialects import Dialect
from tj_core.contract.executors import Claim, Executor
from tj_core.contract.expansion import Expanded
from tj_core.contract.rules import RuleTable
from tj_core.host.frontends import Frontend
from tj_core.host.hookspecs import hookimpl
from tj_core.host.jitted import Entry, Guard, Jitted
from tj_core.ir.effects import Alias, Effects
from tj_core.ir.names import Namer, formal_input, formal_value
from tj_core.ir.proxy import DType, Proxy, TensorProxy
from tj_core.ir.runtime import RuntimeValues
from tj_core.ir.symbol import Symbol
from tj_core.ir.tags import TagSet
from tj_core.ir.trace import Body, BoundSymbol, PassRecord, Trace
from tj_core.ir.tree import map_tree
from tj_core.source import Source

__all__ = ["NullPlugin", "NumericPlugin", "Spread", "call", "vector"]

F64 = DType("float64", 64, "float")


def vector(name: str, size: int, **more: Any) -> TensorProxy:
    """A proxy for a list of ``size`` floats."""
    return TensorProxy(name, (size,), (1,), F64, **more)


# ------------------------------------------------------------------------------- meaning


def _pointwise(fn: Callable[..., float]) -> Callable[..., list[float]]:
    return lambda *vectors: [fn(*items) for items in zip(*vectors, strict=True)]


def _fill_(x: list[float], value: float) -> list[float]:
    x[:] = [value] * len(x)
    return x


def _axpy(a: list[float], x: list[float], y: list[float]) -> list[float]:
    return [ai * xi + yi for ai, xi, yi in zip(a, x, y, strict=True)]


MEANING: dict[str, Callable[..., Any]] = {
    "add": _pointwise(lambda a, b: a + b),
    "mul": _pointwise(lambda a, b: a * b),
    "over": _pointwise(lambda a, b: b or a),
    "neg": _pointwise(lambda a: -a),
    "reciprocal": _pointwise(lambda a: 1 / a),
    "axpy": _axpy,
    "split": lambda x, at: (x[:at], x[at:]),
    "same": lambda x: x,
    "fill_": _fill_,
    "noise": lambda x: [xi + math.sin(i) for i, xi in enumerate(x)],
}


def _resolve(symbol: Symbol) -> Callable[..., Any]:
    return MEANING[symbol.path]


def _differs(found: list[float], expected: list[float], steps: int) -> str | None:
    pairs = zip(found, expected, strict=True)
    far = [i for i, (a, b) in enumerate(pairs) if not math.isclose(a, b, abs_tol=steps * 1e-12)]
    return f"has another value at {far[0]}" if far else None


def _example(p: Proxy) -> list[float] | None:
    if not isinstance(p, TensorProxy):
        return None
    values = [1 + i / 8 for i in range(int(str(p.shape[0])))]
    return _laid_out(values, [int(str(n)) for n in p.strides])


class Spread(list[float]):
    """A vector with stride 2, in its metadata only."""


def _observe(value: Any) -> Proxy | None:
    if not isinstance(value, list):
        return None
    stride = 2 if isinstance(value, Spread) else 1
    return vector("result", len(value)).replace(strides=(stride,))


def _laid_out(value: list[float], strides: Sequence[int]) -> list[float]:
    wanted = Spread if tuple(strides) == (2,) else list
    return value if type(value) is wanted else wanted(value)


VALUES = RuntimeValues(
    observe=_observe,
    memory=id,
    mark=list,
    copy=lambda value: type(value)(value),
    differs=_differs,
    example=_example,
    laid_out=_laid_out,
)


def _known(symbol: Symbol) -> list[str]:
    return [f"num.{name}" for name in MEANING]


# ------------------------------------------------------------------------------- expansion

expansions: RuleTable[Any] = RuleTable("expand")


def call(name: str, *args: Any, outputs: Any = None, **more: Any) -> BoundSymbol:
    """A bound symbol of the dialect."""
    return BoundSymbol(Symbol("num", name), args, outputs=outputs, **more)


@expansions.register("num.add", "num.mul", "num.over")
def _same_size(given: BoundSymbol) -> Expanded:
    sizes = {p.shape for p in given.flat_args if isinstance(p, TensorProxy)}
    if len(sizes) != 1:
        raise ValueError(f"sizes differ: {sorted(map(str, sizes))}")
    return Expanded(_like(given))


@expansions.register("num.neg", "num.reciprocal")
def _unary(given: BoundSymbol) -> Expanded:
    return Expanded(_like(given))


@expansions.register("num.noise")
def _noise(given: BoundSymbol) -> Expanded:
    return Expanded(_like(given), Effects(ordered=("random:num",)))


@expansions.register("num.same")
def _identity(given: BoundSymbol) -> Expanded:
    return Expanded(_like(given), Effects(aliases=(Alias(0, "arg", 0, True),)))


@expansions.register("num.fill_")
def _fill(given: BoundSymbol) -> Expanded:
    return Expanded(_like(given), Effects(mutates=(0,), aliases=(Alias(0, "arg", 0, True),)))


@expansions.register("num.split")
def _split(given: BoundSymbol) -> Expanded:
    size, at = given.flat_args[0].shape[0], given.args[1]  # type: ignore[attr-defined]
    return Expanded((vector("_0", at), vector("_1", size - at)))


@expansions.register("num.axpy")
def _axpy_body(given: BoundSymbol) -> Expanded:
    inputs: dict[str, Proxy] = {}
    for i, arg in enumerate(given.flat_args):
        inputs.setdefault(arg.name, arg.replace(name=formal_input(i), tags=TagSet()))
    a, x, y = (inputs[p.name] for p in given.flat_args)
    product, total = (_like(given).replace(name=formal_value(i)) for i in range(2))
    body = Body(
        tuple(inputs.values()),
        (call("mul", a, x, outputs=product), call("add", product, y, outputs=total)),
        total,
    )
    return Expanded(_like(given), body=body)


def _like(given: BoundSymbol) -> TensorProxy:
    first = given.flat_args[0]
    assert isinstance(first, TensorProxy)
    return first.replace(name="_0", tags=TagSet())


# ------------------------------------------------------------------------------- frontend


class Var:
    """A vector of the program being traced."""

    def __init__(self, tracer: _Tracer, proxy: Any) -> None:
        self.tracer, self.proxy = tracer, proxy

    def __add__(self, other: Var) -> Any:
        return self.tracer.record("add", self, other)

    def __mul__(self, other: Var) -> Any:
        return self.tracer.record("mul", self, other)

    def __neg__(self) -> Any:
        return self.tracer.record("neg", self)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in MEANING:
            raise AttributeError(name)
        return lambda *args: self.tracer.record(name, self, *args)


class _Tracer:
    """Records the calls a function makes on its arguments."""

    def __init__(self, jitted: Jitted, names: list[str], sizes: list[int]) -> None:
        self.jitted = jitted
        self.namer = Namer(set())
        self.inputs = [vector(self.namer(n), size) for n, size in zip(names, sizes, strict=True)]
        self.calls: list[BoundSymbol] = []

    def record(self, name: str, *args: Any) -> Any:
        from tj_core.contract.expansion import bind_outputs

        plain = tuple(a.proxy if isinstance(a, Var) else a for a in args)
        made = call(name, *plain, source=self.source())
        expanded = self.jitted.session.expand.require(made).value(made)
        self.calls.append(bind_outputs(made, expanded, lambda _: self.namer("t")))
        return map_tree(lambda p: Var(self, p), self.calls[-1].outputs, Proxy)

    def source(self) -> Source | None:
        import sys

        frame = sys._getframe(1)
        while frame.f_code.co_filename == __file__ and frame.f_back:
            frame = frame.f_back
        return Source(frame.f_code.co_filename, frame.f_lineno, function=frame.f_code.co_name)


def _wrap(fn: Callable[..., Any], jitted: Jitted) -> Callable[..., Any]:
    rows: dict[tuple[int, ...], Callable[..., Any]] = {}

    @functools.wraps(fn)
    def run(*vectors: list[float]) -> Any:
        sizes = tuple(map(len, vectors))
        if sizes in rows:
            jitted.stats.hits += 1
        else:
            jitted.stats.misses += 1
            rows[sizes] = _compile(fn, jitted, list(sizes))
        return rows[sizes](*vectors)

    run.__tj__ = jitted  # type: ignore[attr-defined]
    return run


def _compile(fn: Callable[..., Any], jitted: Jitted, sizes: list[int]) -> Callable[..., Any]:
    tracer = _Tracer(jitted, list(fn.__code__.co_varnames[: len(sizes)]), sizes)
    outs = fn(*(Var(tracer, p) for p in tracer.inputs))
    trace = Trace(
        tuple(tracer.inputs),
        tuple(tracer.calls),
        map_tree(lambda v: v.proxy, outs, Var),
        history=(PassRecord("acquire", "numeric"),),
        language=jitted.session.language,
    )
    compilation = jitted.compile(trace)
    texts = tuple(Guard(f"len({p.name}) == {p.shape[0]}") for p in tracer.inputs)
    jitted.add(Entry(compilation, lambda: texts))
    return compilation.function


# ------------------------------------------------------------------------------- plugins


def _fingerprint(symbols: Collection[Symbol]) -> str:
    return "the meaning of an operation is in this file"


def _as_known(given: BoundSymbol) -> bool | Decline:
    return Decline("its body was edited") if given.symbol.edited else True


class NumericPlugin:
    """The dialect, its frontend, and a fallback executor that runs it in Python."""

    tj_name = "numeric"

    @hookimpl
    def tj_dialects(self) -> tuple[Dialect, ...]:
        prelude = ("from tj_core.testing.numeric import num",)
        known, says = _known, _fingerprint
        return (Dialect("num", prelude, _resolve, values=VALUES, known=known, fingerprint=says),)

    @hookimpl
    def tj_rule_tables(self) -> tuple[RuleTable[Any], ...]:
        return (expansions,)

    @hookimpl
    def tj_frontends(self) -> tuple[Frontend, ...]:
        return (Frontend("numeric", callable, _wrap),)

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        claims.set("num.*", Claim(None, _as_known))
        return (Executor("python", claims, fallback=True),)


class NullPlugin:
    """An executor that claims every call of some symbols and returns ``answer``, without a kernel.

    An example of a third party's plugin, and a tool for tests of claiming.
    """

    def __init__(
        self,
        *symbols: str,
        name: str = "null",
        answer: Any = None,
        check: Callable[[BoundSymbol], bool | Decline] | None = None,
    ) -> None:
        self.tj_name = name
        self.symbols = symbols
        self.answer = answer
        self.check = check
        self.calls = itertools.count()

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        claims: RuleTable[Claim] = RuleTable("claim")
        for symbol in self.symbols:
            claims.set(symbol, Claim(self._run, self.check))
        return (Executor(self.tj_name, claims),)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        next(self.calls)
        return self.answer(*args, **kwargs) if callable(self.answer) else self.answer


class _Num:
    """The namespace ``num`` in printed programs, as in ``num.add``."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in MEANING:
            raise AttributeError(name)
        return MEANING[name]


num = _Num()
