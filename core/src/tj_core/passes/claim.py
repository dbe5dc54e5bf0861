"""The claim walk: every call of a trace gets an executor.

The walk goes from the top level down. All executors but the fallback are asked in order for the
whole call. If none takes it, its body is searched for calls that one takes. If there is none
either, the fallback takes the whole call. So the fallback runs calls at the highest level at which
no other executor takes a part.

An executor that fuses also gets calls that may stand in its regions. Calls that end up in no region
(`tj_core.passes.fuse.plan`) are claimed again without fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tj_core.contract.decline import ask
from tj_core.contract.executors import Claim, Executor, States, with_state
from tj_core.edit.bodies import wrapped_body
from tj_core.edit.editor import TraceEditor
from tj_core.edit.inlining import can_inline, inline
from tj_core.edit.subprograms import map_programs
from tj_core.errors import PluginError, RuleMissingError
from tj_core.ir.proxy import NumberProxy, Proxy, TensorProxy, requires_grad
from tj_core.ir.stage import Stage
from tj_core.ir.symbol import Context, Symbol
from tj_core.ir.trace import BoundSymbol, Change, PassRecord, Trace
from tj_core.passes.claim_record import ClaimRecord
from tj_core.passes.fuse.plan import Fusers, Plan, plan
from tj_core.passes.fuse.regions import names_constants

if TYPE_CHECKING:
    from tj_core.contract.fusion import Fusion
    from tj_core.contract.rules import Rule
    from tj_core.ir.tags import TagRegistry, TagSet

__all__ = ["Claimed", "claim"]

NEEDS_GRADIENT = "its outputs need gradients, and no gradient transform has run"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed trace, the report, and the implementations of claimed symbols.

    ``hosted`` are the claimed symbols that may stand in regions of another executor; ``planned`` is
    the plan of the trace's regions, if it has calls for some.
    """

    trace: Trace
    records: tuple[ClaimRecord, ...]
    implementations: dict[Symbol, Callable[..., Any]]
    hosted: frozenset[Symbol] = frozenset()
    planned: Plan | None = None


def claim(trace: Trace, executors: Sequence[Executor], tags: TagRegistry) -> Claimed:
    """``trace`` at stage CLAIMED, every call with one of ``executors``.

    :raises RuleMissingError: if no executor runs a call.
    :raises PluginError: if an executor's check raises.
    """
    walk = _Walk(
        [e for e in executors if not e.fallback],
        [e for e in executors if e.fallback],
        TraceEditor(trace, tags),
        grad_done=trace.stage >= Stage.SPLIT,
    )
    walk.settle(0)
    done = walk.editor.done(PassRecord("claim", changes=tuple(walk.changes)), stage=Stage.CLAIMED)
    hosted = frozenset(walk.hosted)
    return Claimed(done, tuple(walk.records), walk.implementations, hosted, walk.planned)


Path: TypeAlias = "tuple[int, ...]"
"""The place of a call: its index in the program, then in the body of that call, and so on."""


@dataclass(frozen=True, slots=True)
class _Taker:
    """The executor for a call; ``fuses``: in a region with other calls."""

    executor: Executor
    fuses: bool = False


_Key: TypeAlias = "tuple[int, Context, tuple[TagSet, ...], tuple[str, ...]]"

_Answer: TypeAlias = "tuple[_Taker | None, tuple[tuple[str, str], ...]]"
"""The executor that takes a call, and those that declined before, with reasons."""


@dataclass
class _Walk:
    """One claim walk's state.

    ``wanted`` caches for bodies if any executor takes a part, ``reasons`` the reasons of executors
    that have a claim for a part and declined. ``fused`` has the executor and the path of each call
    that is to stand in a region, by label; ``single`` the calls, by executor and path, that the
    executor must not fuse, nor their parts, with the reason.
    ``asked`` caches executors' answers for parts of bodies, by the key and the place of each.
    ``states`` are the states of the claims for calls of this program, and ``planned`` is the plan
    of its regions as claimed last.
    ``numbers`` are the numbers computed so far, by type and expression over symbols.
    ``written`` is true after a write that has given its argument a gradient. Other tensors in the
    same memory have one from then on, which their metadata in a trace with writes do not say.
    """

    executors: list[Executor]
    fallbacks: list[Executor]
    editor: TraceEditor
    grad_done: bool
    records: list[ClaimRecord] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    implementations: dict[Symbol, Callable[..., Any]] = field(default_factory=dict)
    wanted: dict[_Key, bool] = field(default_factory=dict)
    reasons: dict[_Key, dict[str, str]] = field(default_factory=dict)
    asked: dict[tuple[_Key, int, bool], _Answer] = field(default_factory=dict)
    subprograms: dict[tuple[int, bool], tuple[Trace, Trace]] = field(default_factory=dict)
    hosted: set[Symbol] = field(default_factory=set)
    fused: dict[str, tuple[str, Path]] = field(default_factory=dict)
    single: dict[tuple[str, Path], str] = field(default_factory=dict)
    numbers: dict[tuple[str, str], Proxy] = field(default_factory=dict)
    states: States = field(default_factory=dict)
    path: Path = ()
    written: bool = False
    planned: Plan | None = None

    def settle(self, depth: int) -> None:
        """Claim all calls; repeat, without fusion for calls that end up in no region."""
        trace, tags = self.editor.trace, self.editor.tags
        kept = len(self.records), len(self.changes)
        written = self.written
        self.program(depth)
        # Each round leaves out calls that were fused in the one before, so that it ends.
        while more := self.left_over():
            self.single |= more
            self.editor, self.fused = TraceEditor(trace, tags), {}
            self.wanted, self.reasons = {}, {}
            # From here on only: the walk of a subprogram has the lists of the program around it.
            del self.records[kept[0] :], self.changes[kept[1] :]
            self.written = written
            self.program(depth)

    def program(self, depth: int) -> None:
        """Claim all calls of the program, once."""
        self.numbers = {}
        self.remember(self.editor.trace.inputs)
        for place, call in enumerate(self.editor.trace.calls):
            self.path = (place,)
            self.call(self.editor.moved(call), depth)

    def left_over(self) -> dict[tuple[str, Path], str]:
        """The calls to claim without fusion: the highest none of whose parts is in a region.

        By executor and path, each with the reason.
        """
        self.planned = None
        if not self.fused:
            return {}
        self.planned = plan(self.editor.calls, Fusers.of(self.executors, self.hosted))
        refused = self.planned.refused
        kept = [path for label, (_, path) in self.fused.items() if label not in refused]
        stays = {path[:n] for path in kept for n in range(len(path) + 1)}
        return {
            (name, next(p[:n] for n in range(1, len(p) + 1) if p[:n] not in stays)): reason
            for (name, p), reason in ((self.fused[label], why) for label, why in refused.items())
        }

    def in_subprograms(self, call: BoundSymbol, rule: Rule[Claim], depth: int) -> BoundSymbol:
        """``call`` with all calls in its subprograms claimed."""
        shared = rule.value.shares_subprograms and not self.carries_gradient(call)
        return map_programs(call, lambda program: self.subprogram(program, shared, depth + 1))

    def subprogram(self, program: Trace, shared: bool, depth: int) -> Trace:
        """A subprogram's claimed form, by the fallback alone unless ``shared``; cached by id."""
        key = id(program), shared
        if key not in self.subprograms:
            executors = self.executors if shared else []
            editor = self.editor.of_subprogram(program)
            walk = replace(
                self,
                executors=executors,
                editor=editor,
                wanted={},
                reasons={},
                asked={},
                fused={},
                single={},
                states={},
                path=(),
            )
            walk.settle(depth)
            # With the program itself, whose `id` must not become another object's.
            self.subprograms[key] = program, walk.editor.done()
        return self.subprograms[key][1]

    def call(self, call: BoundSymbol, depth: int, within: tuple[_Key, int] | None = None) -> None:
        """Claim ``call``, or replace it by an earlier number of the same expression.

        ``within``: see `ask`.
        """
        if (known := self.known_number(call)) is not None:
            self.editor.substitute(call.flat_outs[0], known, call.source)
            self.changes.append(Change(call.label, "core", f"{known.name} is that number"))
            return
        self.placed(call, depth, within)
        self.remember(call.flat_outs)
        self.written |= any(
            requires_grad(after) and not requires_grad(call.flat_args[index])
            for index, after in call.effects.rebinds
            if index in call.effects.mutates
        )

    def remember(self, values: Iterable[Proxy]) -> None:
        """Note the numbers among ``values`` that calls may return again."""
        for p in values:
            if isinstance(p, NumberProxy) and p.expr:
                self.numbers.setdefault((p.kind, p.expr), self.editor.current(p))

    def known_number(self, call: BoundSymbol) -> Proxy | None:
        """The earlier number with the expression of the one number that ``call`` returns, if any.

        Many bodies read the same sizes, of values that fusion need not materialise for that.
        """
        if not call.effects.removable or call.subprograms or len(call.flat_outs) != 1:
            return None
        (out,) = call.flat_outs
        if not isinstance(out, NumberProxy) or not out.expr or call.outputs is not out:
            return None
        return self.numbers.get((out.kind, out.expr))

    def placed(self, call: BoundSymbol, depth: int, within: tuple[_Key, int] | None) -> None:
        """Keep ``call`` as its executor's, or else the claimed calls of its body."""
        if call.executor is not None:
            return self.editor.append(self.owned(call, depth))
        alone = self.single and any(self.why_single(e.name) for e in self.executors)
        taker, declined = self.ask(call, None if alone else within)
        if taker is not None:
            take = self.fuse if taker.fuses else self.take
            return self.editor.append(take(call, taker.executor, declined, depth))
        if can_inline(call) and self.wants_part(call):
            if self.may_descend(call):
                return self.descend(call, declined, depth)
            declined = (*declined, ("its body", NEEDS_GRADIENT))
        if self.better_inside(call):
            return self.descend(call, declined, depth)
        declined = tuple(self.with_reason_inside(call, *item) for item in declined)
        for executor in self.fallbacks:
            verdict = self.check(executor, call)
            rule = executor.claims.get(call.symbol)
            if verdict is None and rule is not None:
                self.note(call, executor.name, declined, depth)
                claimed = self.in_subprograms(call, rule, depth)
                return self.editor.append(claimed.replace(executor=executor.name))
            assert verdict is not None
            declined = (*declined, (executor.name, verdict))
        if can_inline(call):
            return self.descend(call, declined, depth)
        raise _unclaimed(call, declined)

    def ask(self, call: BoundSymbol, within: tuple[_Key, int] | None = None) -> _Answer:
        """The executor that takes ``call``, which is the part of a body at ``within``.

        Calls share bodies: the answer for a part is that for the same part elsewhere, except for
        reasons that name its values.
        """
        if within is None:
            return self.answer(call)
        key = (*within, self.written)
        answer = self.asked.get(key)
        if answer is None:
            answer = self.answer(call)
            names = [p.name for p in (*call.flat_args, *call.flat_outs)]
            if not any(name in reason for _, reason in answer[1] for name in names):
                self.asked[key] = answer
        return answer

    def answer(self, call: BoundSymbol) -> _Answer:
        declined: list[tuple[str, str]] = []
        for executor in self.executors:
            reason = self.check(executor, call)
            if reason is None:
                return _Taker(executor), tuple(declined)
            if executor.fusion is not None:
                reason = self.why_not_fused(executor, executor.fusion, call)
                if reason is None:
                    return _Taker(executor, fuses=True), tuple(declined)
            declined.append((executor.name, reason))
        return None, tuple(declined)

    def why_not_fused(self, executor: Executor, fusion: Fusion, call: BoundSymbol) -> str | None:
        """Reason why ``call`` cannot stand in a region of ``executor``, or None."""
        if (reason := self.why_single(executor.name)) is not None:
            return f"it stands in no region: {reason}"
        if call.on_subclass:
            return "fuses calls on plain tensors, and this is one on a tensor subclass"
        if self.carries_gradient(call):
            return NEEDS_GRADIENT
        if call.subprograms or not call.effects.removable:
            return "it has effects"
        if not names_constants(call, self.editor.trace.language):
            return "it has a constant that is no tensor and has no spelling in Python"
        return ask(executor.owner, fusion.can_fuse, call)

    def with_reason_inside(self, call: BoundSymbol, name: str, reason: str) -> tuple[str, str]:
        """The executor's name with its reason to decline, from inside the body if there is one.

        Executors without a claim for ``call`` may have declined a part of its body.
        """
        executor = next((e for e in self.executors if e.name == name), None)
        if executor is None or executor.rule(call) is not None:
            return name, reason
        found = self.reasons.get(self.key(call), {}).get(name)
        if found is not None or executor.fusion is None or self.why_single(name) is not None:
            return name, found or reason
        while can_inline(call) and call.body is not None and call.body.calls:
            call = call.body.calls[0]
            why = self.why_not_fused(executor, executor.fusion, call)
            reason = f"{call.symbol}: {why}" if why is not None else reason
        return name, reason

    def why_single(self, name: str) -> str | None:
        """Reason not to let executor ``name`` fuse the call at `path` or one around it, or None."""
        if not self.single:
            return None
        upwards = ((name, self.path[: n + 1]) for n in range(len(self.path)))
        return next((self.single[key] for key in upwards if key in self.single), None)

    def check(self, executor: Executor, call: BoundSymbol) -> str | None:
        """Reason for which ``executor`` does not claim ``call``; None if it does."""
        rule = executor.rule(call)
        if rule is None and call.on_subclass and executor.claims.get(call.symbol) is not None:
            return (
                "claims calls on plain tensors, and this is one on a tensor subclass: its key is "
                f"{call.kinds[0]}.{call.symbol.qualname}"
            )
        if rule is None and call.symbol.functional and executor.claims.get(call.symbol.base):
            return f"claims {call.symbol.base}, and this call writes what it is given"
        if rule is None:
            return f"has no claim for {call.symbol}"
        if not executor.fallback and self.carries_gradient(call):
            return NEEDS_GRADIENT
        return ask(executor.owner, rule.value.check, call)

    def fuse(
        self,
        call: BoundSymbol,
        executor: Executor,
        declined: tuple[tuple[str, str], ...],
        depth: int,
    ) -> BoundSymbol:
        """``call``, assigned to a region of ``executor``."""
        self.note(call, executor.name, declined, depth)
        self.fused[call.label] = executor.name, self.path
        return call.replace(executor=executor.name)

    def take(
        self,
        call: BoundSymbol,
        executor: Executor,
        declined: tuple[tuple[str, str], ...],
        depth: int,
    ) -> BoundSymbol:
        """The executor's own call, with ``call`` as its body."""
        rule = executor.rule(call)
        if rule is None or rule.value.implementation is None:
            raise PluginError(
                f"{executor.owner} claims {call.symbol} without an implementation",
                source=call.source,
            )
        symbol = executor.symbol(call, rule)
        self.implementations[symbol] = rule.value.implementation
        if rule.value.traceable:
            self.hosted.add(symbol)
        self.note(call, executor.name, declined, depth)
        self.changes.append(Change(call.label, rule.plugin, rule.key, rule.origin))
        call = self.in_subprograms(call, rule, depth)
        name = call.label if call.flat_outs else "_".join(map(str, self.path))
        state = executor.state_of(call, rule, self.states, f"state_{name}")
        taken = call.replace(
            symbol=symbol,
            body=wrapped_body(call),
            executor=executor.name,
            parent=call.parent or call.label,
        )
        return with_state(taken, state)

    def owned(self, call: BoundSymbol, depth: int) -> BoundSymbol:
        """A call that an executor claimed before the split: one half of its pair."""
        executor = next(e for e in self.executors if e.name == call.executor)
        rule = executor.claims.get(Symbol.parse(call.symbol.name))
        assert rule is not None
        assert rule.value.pair is not None
        self.implementations[call.symbol] = getattr(rule.value.pair, call.symbol.variant)
        self.note(call, executor.name, (), depth)
        return call

    def better_inside(self, call: BoundSymbol) -> bool:
        """Decide if the fallback runs the body of ``call``, since the whole call would copy.

        Not for random calls: written in place, the numbers are drawn in the order of the memory.
        """
        draws = any(resource.startswith("random") for resource in call.effects.ordered)
        return call.symbol.functional and not draws and self.may_descend(call)

    def may_descend(self, call: BoundSymbol) -> bool:
        return can_inline(call) and not self.carries_gradient(call)

    def wants_part(self, call: BoundSymbol) -> bool:
        """Decide if an executor takes any part of the body of ``call``, which can replace it.

        Cached, since calls share bodies.
        """
        if not self.executors:
            return False
        key = self.key(call)
        if key not in self.wanted:
            tags = self.editor.tags
            assert tags is not None
            # With the tags that the parts will have; no name of them stays.
            inner = inline(call, str, tags).calls
            self.wanted[key] = any(self.wants(c, self.reasons.setdefault(key, {})) for c in inner)
        return self.wanted[key]

    def wants(self, call: BoundSymbol, reasons: dict[str, str]) -> bool:
        """Decide if an executor takes ``call`` or a part of it; if not, add to ``reasons``."""
        taker, declined = self.ask(call)
        if taker is not None:
            return True
        claiming = {e.name for e in self.executors if e.rule(call) is not None}
        found = {name: f"{call.symbol}: {why}" for name, why in declined if name in claiming}
        descends = self.may_descend(call) and self.wants_part(call)
        inside = self.reasons.get(self.key(call), {})
        for name, why in (inside | found).items():
            reasons.setdefault(name, why)
        return descends

    def carries_gradient(self, call: BoundSymbol) -> bool:
        """Decide if PyTorch's autograd must see ``call``: a result may need a gradient."""
        if self.grad_done:
            return False
        tensors = (p for p in call.flat_outs if isinstance(p, TensorProxy))
        return any(p.requires_grad or self.written for p in tensors)

    def key(self, call: BoundSymbol) -> _Key:
        """The key of the cached answers for the body of ``call``."""
        names = (
            e.name for e in self.executors if self.single and self.why_single(e.name) is not None
        )
        tags = (call.tags, *(p.tags for p in call.flat_args))
        return id(call.body), call.context, tags, tuple(names)

    def descend(
        self,
        call: BoundSymbol,
        declined: tuple[tuple[str, str], ...],
        depth: int,
    ) -> None:
        self.note(call, None, declined, depth)
        inlined, start = self.editor.inlined(call), len(self.editor.calls)
        path, key = self.path, self.key(call)
        for place, part in enumerate(inlined.calls):
            self.path = (*path, place)
            moved = self.editor.moved(part)
            self.call(moved, depth + 1, (key, place) if moved is part else None)
        self.path = path
        self.editor.stands_for(call, start, inlined.values)

    def note(
        self,
        call: BoundSymbol,
        executor: str | None,
        declined: tuple[tuple[str, str], ...],
        depth: int,
    ) -> None:
        record = ClaimRecord(call.label, call.symbol, call.source, executor, declined, depth)
        self.records.append(record)


def _unclaimed(call: BoundSymbol, declined: tuple[tuple[str, str], ...]) -> RuleMissingError:
    reasons = "; ".join(f"{name}: {reason}" for name, reason in declined) or "there is none"
    return RuleMissingError(
        f"no executor runs {call.symbol} (executors: {reasons})",
        source=call.source,
        hint="install a plugin with an executor for it: pip install tj-torch runs PyTorch's",
    )
