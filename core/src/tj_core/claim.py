"""The claim walk: every call of a trace gets an executor.

Top down: the executors are asked in order for the whole call, the fallback excepted; if nobody
takes it, its body is searched for calls somebody takes; else the fallback takes the call whole,
at the highest level at which nobody else wanted any part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tj_core.bodies import with_args, wrapped_body
from tj_core.errors import PluginError, RuleMissingError, TjError, TraceError
from tj_core.inlining import can_inline, inline
from tj_core.proxy import Proxy, TensorProxy
from tj_core.records import Claim, Decline, Executor
from tj_core.regions import map_programs
from tj_core.rules import Rule
from tj_core.source import Source
from tj_core.stages import Stage
from tj_core.symbol import Body, BoundSymbol, Context, Symbol
from tj_core.tags import TagRegistry
from tj_core.trace import Change, Namer, PassRecord, Trace
from tj_core.travel import Heirs
from tj_core.tree import map_tree

__all__ = ["ClaimRecord", "Claimed", "claim"]

NEEDS_GRADIENT = "its outputs need gradients, and no gradient transform has run"


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """Who got a call, and who declined it before and why.

    ``executor`` is None for a call that was replaced by its body. ``depth`` counts the bodies the
    call was found in, and the regions.
    """

    call: str
    symbol: Symbol
    source: Source | None
    executor: str | None
    declined: tuple[tuple[str, str], ...] = ()
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed trace, the report, and what the symbols made by claiming run as."""

    trace: Trace
    records: tuple[ClaimRecord, ...]
    implementations: dict[Symbol, Callable[..., Any]]


def claim(trace: Trace, executors: Sequence[Executor], tags: TagRegistry) -> Claimed:
    """``trace`` at stage CLAIMED.

    :raises RuleMissingError: if a call is left that no executor runs.
    :raises PluginError: if an executor's check raises.
    """
    walk = _Walk(
        [e for e in executors if not e.fallback],
        [e for e in executors if e.fallback],
        tags,
        Namer(trace.names()),
        Heirs(tags),
        grad_done=trace.stage >= Stage.SPLIT,
    )
    done = walk.program(trace, 0)
    record = PassRecord("claim", changes=tuple(walk.changes))
    done = done.after(record, stage=Stage.CLAIMED)
    return Claimed(done, tuple(walk.records), walk.implementations)


@dataclass
class _Walk:
    """One claim walk's state."""

    executors: list[Executor]
    fallbacks: list[Executor]
    tags: TagRegistry
    namer: Namer
    heirs: Heirs
    grad_done: bool
    records: list[ClaimRecord] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    implementations: dict[Symbol, Callable[..., Any]] = field(default_factory=dict)
    wanted: dict[tuple[int, Context], bool] = field(default_factory=dict)
    regions: dict[tuple[int, bool], tuple[Trace, Trace]] = field(default_factory=dict)

    def program(self, trace: Trace, depth: int) -> Trace:
        """``trace``, all of whose calls have an executor."""
        values: dict[str, Any] = {}
        calls: list[BoundSymbol] = []

        def current(p: Proxy) -> Any:
            return values.get(p.name, p)

        for call in trace.calls:
            calls += self.call(with_args(call, current) if values else call, values, depth)
        outputs = map_tree(current, trace.outputs, Proxy)
        return self.heirs.trace(trace.replace(calls=tuple(calls), outputs=outputs))

    def in_regions(self, call: BoundSymbol, rule: Rule[Claim], depth: int) -> BoundSymbol:
        """``call``, all calls of whose regions have an executor."""
        shared = rule.value.shares_regions and (self.grad_done or not _carries_gradient(call))
        return map_programs(call, lambda program: self.region(program, shared, depth + 1))

    def region(self, program: Trace, shared: bool, depth: int) -> Trace:
        """A region's program; by the fallback alone unless ``shared``; once if calls share it."""
        key = id(program), shared
        if key not in self.regions:
            executors = self.executors if shared else []
            namer, heirs = Namer(program.names()), Heirs(self.tags)
            walk = replace(self, executors=executors, namer=namer, heirs=heirs, wanted={})
            self.regions[key] = program, walk.program(program, depth)
        return self.regions[key][1]

    def call(self, call: BoundSymbol, values: dict[str, Any], depth: int) -> list[BoundSymbol]:
        """What runs in ``call``'s place; ``values`` learns outputs that are other values there."""
        if call.executor is not None:
            return [self.owned(call, depth)]
        taker, declined = self.ask(call)
        if taker is not None:
            return [self.take(call, taker, declined, depth)]
        if can_inline(call) and self.wants_part(call.body, call.context):
            if self.may_descend(call):
                return self.descend(call, values, declined, depth)
            declined = (*declined, ("its body", NEEDS_GRADIENT))
        if self.better_inside(call):
            return self.descend(call, values, declined, depth)
        for executor in self.fallbacks:
            verdict = self.check(executor, call)
            rule = executor.claims.get(call.symbol)
            if verdict is None and rule is not None:
                self.note(call, executor.name, declined, depth)
                claimed = self.in_regions(call, rule, depth)
                return [claimed.replace(executor=executor.name)]
            assert verdict is not None
            declined = (*declined, (executor.name, verdict))
        if can_inline(call):
            return self.descend(call, values, declined, depth)
        raise _unclaimed(call, declined)

    def ask(self, call: BoundSymbol) -> tuple[Executor | None, tuple[tuple[str, str], ...]]:
        declined: list[tuple[str, str]] = []
        for executor in self.executors:
            reason = self.check(executor, call)
            if reason is None:
                return executor, tuple(declined)
            declined.append((executor.name, reason))
        return None, tuple(declined)

    def check(self, executor: Executor, call: BoundSymbol) -> str | None:
        """Why ``executor`` does not take ``call``, or None: it does."""
        rule = executor.claims.get(call.symbol)
        if rule is None:
            return f"has no claim for {call.symbol}"
        if not executor.fallback and not self.grad_done and _carries_gradient(call):
            return NEEDS_GRADIENT
        verdict = True if rule.value.check is None else _verdict(executor, rule.value.check, call)
        if isinstance(verdict, Decline):
            return verdict.reason
        return None if verdict else "declined without a reason"

    def take(
        self,
        call: BoundSymbol,
        executor: Executor,
        declined: tuple[tuple[str, str], ...],
        depth: int,
    ) -> BoundSymbol:
        """The executor's own call, whose body is the call it stands for."""
        symbol = Symbol(executor.name, call.symbol.qualname)
        rule = executor.claims.get(call.symbol)
        if rule is None or rule.value.implementation is None:
            raise TraceError(
                f"executor {executor.name!r} claims {call.symbol} without an implementation"
            )
        self.implementations[symbol] = rule.value.implementation
        self.note(call, executor.name, declined, depth)
        self.changes.append(Change(call.label, rule.plugin, rule.key, rule.origin))
        call = self.in_regions(call, rule, depth)
        return call.replace(
            symbol=symbol,
            body=wrapped_body(call),
            executor=executor.name,
            parent=call.parent or call.label,
        )

    def owned(self, call: BoundSymbol, depth: int) -> BoundSymbol:
        """A call that an executor got before: half of its pair."""
        name, _, half = call.symbol.name.rpartition(".")
        executor = next(e for e in self.executors if e.name == call.executor)
        rule = executor.claims.get(Symbol.parse(name))
        assert rule is not None and rule.value.pair is not None
        self.implementations[call.symbol] = getattr(rule.value.pair, half)
        self.note(call, executor.name, (), depth)
        return call

    def better_inside(self, call: BoundSymbol) -> bool:
        """Whether the fallback gets the body of ``call``, since as a whole the call would copy.

        Not where it draws random numbers: written to memory, they are in the order of that.
        """
        draws = any(resource.startswith("random") for resource in call.effects.ordered)
        return call.symbol.functional and not draws and self.may_descend(call)

    def may_descend(self, call: BoundSymbol) -> bool:
        return can_inline(call) and (self.grad_done or not _carries_gradient(call))

    def wants_part(self, body: Body | None, context: Context) -> bool:
        """Whether an executor takes any call of ``body``, of a call under ``context``.

        Bodies are shared, so asked once.
        """
        if body is None or not self.executors:
            return False
        key = id(body), context
        if key not in self.wanted:
            inner = [c.replace(context=c.context.over(context)) for c in body.calls]
            self.wanted[key] = any(
                self.ask(c)[0] is not None
                or (self.may_descend(c) and self.wants_part(c.body, c.context))
                for c in inner
            )
        return self.wanted[key]

    def descend(
        self,
        call: BoundSymbol,
        values: dict[str, Any],
        declined: tuple[tuple[str, str], ...],
        depth: int,
    ) -> list[BoundSymbol]:
        self.note(call, None, declined, depth)
        inlined = inline(call, self.namer, self.tags)
        inner: dict[str, Any] = {}
        calls: list[BoundSymbol] = []

        def current(p: Proxy) -> Any:
            return inner.get(p.name, p)

        for part in inlined.calls:
            calls += self.call(with_args(part, current), inner, depth + 1)
        final = {p.name: p for made in calls for p in made.flat_outs}
        for p in call.flat_outs:
            value = map_tree(current, inlined.values.get(p.name, p), Proxy)
            if isinstance(value, Proxy) and value.name == p.name:
                value = final.get(p.name, value)
            else:
                self.heirs.inherit(value, p.tags, call.source)
            if value != p:
                values[p.name] = value
        return calls

    def note(
        self,
        call: BoundSymbol,
        executor: str | None,
        declined: tuple[tuple[str, str], ...],
        depth: int,
    ) -> None:
        record = ClaimRecord(call.label, call.symbol, call.source, executor, declined, depth)
        self.records.append(record)


def _verdict(
    executor: Executor, check: Callable[[BoundSymbol], bool | Decline], call: BoundSymbol
) -> bool | Decline:
    try:
        return check(call)
    except TjError:
        raise
    except Exception as error:
        raise PluginError(
            f"executor {executor.name!r} failed in its check of {call.symbol}: "
            f"{type(error).__name__}: {error}",
            source=call.source,
            hint="leave the executor out with tj.jit(..., executors=[...])",
        ) from error


def _carries_gradient(call: BoundSymbol) -> bool:
    outs = call.flat_outs
    return any(isinstance(p, TensorProxy) and p.requires_grad for p in outs)


def _unclaimed(call: BoundSymbol, declined: tuple[tuple[str, str], ...]) -> RuleMissingError:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in declined) or "there is none"
    return RuleMissingError(
        f"no executor runs {call.symbol} (executors: {reasons})",
        source=call.source,
        hint="install a plugin with an executor for it: pip install tj-torch runs PyTorch's",
    )
