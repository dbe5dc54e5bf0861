"""Made-up programs of one seed, drawn by Hypothesis from a strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["collected", "each", "varied"]

T = TypeVar("T")


def each(
    programs: SearchStrategy[T],
    see: Callable[[T], object],
    seed: int,
    count: int,
    *,
    shrink: bool = False,
) -> None:
    """Call ``see`` with ``count`` programs of one seed.

    If ``see`` raises, its error is raised; with ``shrink`` that of the shortest program like it.
    """

    @hypothesis_seed(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs)
    def run(program: T) -> None:
        see(program)

    run()


def collected(programs: SearchStrategy[T], seed: int, count: int) -> list[T]:
    """Make the programs of one seed, without running them."""
    made: list[T] = []
    each(programs, made.append, seed, count)
    return made


def varied(programs: SearchStrategy[T], seed: int, count: int, few: int = 10) -> list[T]:
    """Make ``count`` programs, of other seeds for each ``seed``, and ``few`` of each of these.

    Later programs of one seed are made of earlier ones. Fifty that are made ten by ten have three
    times as many different lines.
    """
    seeds = range(seed * count, seed * count + -(-count // few))
    return [made for part in seeds for made in collected(programs, part, few)][:count]
