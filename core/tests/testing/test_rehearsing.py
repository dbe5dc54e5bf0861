"""Rehearsals compile the regions of many programs together, and run none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
from tj_core.host.session import Session
from tj_core.testing.fusing import LoopPlugin
from tj_core.testing.numeric import NumericPlugin
from tj_core.testing.rehearsing import rehearsal

pytestmark = pytest.mark.usefixtures("own_project")

X, Y = [1.0, -2.0, 4.0], [0.5, 3.0, 2.0]
PROGRAMS: dict[str, tuple[Callable[..., Any], list[float]]] = {
    "product": (lambda x, y: -(x + y) * x, [-1.5, 2.0, -24.0]),
    "sum": (lambda x, y: (x * y) + x + y, [2.0, -5.0, 14.0]),
}


def test_regions_of_many_programs_are_compiled_and_not_run() -> None:
    runs: list[int] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            runs.append(1)
            return function(*args)

        return run

    loop = LoopPlugin(change=counted)
    session = Session([loop, NumericPlugin()], overrides={"strict": True})
    with rehearsal(session):
        for program, expected in PROGRAMS.values():
            rehearsed = tj.jit(program, session=session)
            assert rehearsed(X, Y) == rehearsed(X, Y) == expected
    assert loop.batches[-1] == len(loop.compiled) == len(PROGRAMS)
    assert runs == []
    for program, expected in PROGRAMS.values():
        assert tj.jit(program, session=session)(X, Y) == expected
    assert len(loop.compiled) == len(PROGRAMS)  # found by their structure
    assert len(runs) >= len(PROGRAMS)


def test_what_comes_after_a_rehearsal_that_failed_runs_in_earnest() -> None:
    runs: list[int] = []
    loop = LoopPlugin(change=lambda function: lambda *args: runs.append(1) or function(*args))
    session = Session([loop, NumericPlugin()], overrides={"strict": True})
    program, expected = PROGRAMS["sum"]
    with pytest.raises(ValueError, match="planted"), rehearsal(session):  # noqa: PT012 - what it leaves
        tj.jit(program, session=session)(X, Y)
        raise ValueError("planted")
    assert runs == []
    assert tj.jit(program, session=session)(X, Y) == expected
    assert runs
