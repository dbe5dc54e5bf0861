"""A simulated network: what a program's communication costs beside its computation, without ranks.

One thread computes the calls one after another. A start gives its collective to the channel of the
group, which runs one after another, each for its estimated time; a call that reads what it gives
begins no earlier than it ends. The time for which the thread stands still is exposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tj_distributed.sequence import described, starts

if TYPE_CHECKING:
    from tj_core.extend import BoundSymbol

    from tj_distributed.schedule.times import Times

__all__ = ["Span", "Step", "Timeline", "simulated", "steps"]


class Step(NamedTuple):
    """A call in a simulated run.

    ``seconds`` is its time: on the channel ``channel`` if that is not empty, else of the thread.
    ``waits`` are earlier steps, by index, whose collectives have to end before.
    """

    name: str
    seconds: float
    channel: str = ""
    waits: tuple[int, ...] = ()


class Span(NamedTuple):
    """The time in which something runs, or is waited for, in seconds from the start."""

    name: str
    begin: float
    end: float


class Timeline(NamedTuple):
    """A simulated run: spans of what was computed, of waits, and of collectives."""

    computed: tuple[Span, ...]
    waited: tuple[Span, ...]
    sent: tuple[Span, ...]

    @property
    def seconds(self) -> float:
        """The time of the run."""
        return max((s.end for s in (*self.computed, *self.waited, *self.sent)), default=0.0)

    @property
    def exposed(self) -> float:
        """Seconds for which nothing is computed because a collective has not ended."""
        return _total(self.waited)

    @property
    def communication(self) -> float:
        """Seconds of all collectives."""
        return _total(self.sent)


def _total(spans: Sequence[Span]) -> float:
    return sum(span.end - span.begin for span in spans)


def steps(calls: Sequence[BoundSymbol], times: Times) -> list[Step]:
    """The steps of ``calls``, by estimated ``times``."""
    found: list[Step] = []
    open_: dict[str, int] = {}
    for call in calls:
        waits = {open_.pop(p.name) for p in call.flat_args if p.name in open_ and call.flat_outs}
        if starts(call):
            open_.update((p.name, len(found)) for p in call.flat_outs)
            channel, seconds = described(call).group, times.collective(call)
        else:
            channel, seconds = "", times.seconds(call)
        found.append(Step(call.label, seconds, channel, tuple(sorted(waits))))
    return found


def simulated(program: Sequence[Step]) -> Timeline:
    """Run ``program`` on a simulated network; its end waits for all collectives."""
    computed, waited, sent = list[Span](), list[Span](), list[Span]()
    ends: dict[int, float] = {}
    free: dict[str, float] = {}
    now = 0.0
    for i, step in enumerate((*program, Step("the end", 0.0, "", tuple(_starts(program))))):
        ready = max((ends[start] for start in step.waits), default=now)
        if ready > now:
            waited.append(Span(step.name, now, ready))
            now = ready
        if step.channel:
            begin = max(now, free.get(step.channel, 0.0))
            ends[i] = free[step.channel] = begin + step.seconds
            sent.append(Span(step.name, begin, ends[i]))
        elif step.seconds > 0:
            computed.append(Span(step.name, now, now + step.seconds))
            now += step.seconds
    return Timeline(tuple(computed), tuple(waited), tuple(sent))


def _starts(program: Sequence[Step]) -> list[int]:
    return [i for i, step in enumerate(program) if step.channel]
