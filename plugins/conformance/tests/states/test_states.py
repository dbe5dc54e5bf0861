"""Programs whose state changes between calls: a planted fault is found in each way."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
from tj_conformance.states import texts
from tj_conformance.states.running import WAYS, compare
from tj_conformance.states.texts import PARTS, Program, Step

STEPS = (
    Step((), "rows=3, grad=True"),
    Step(("m.k0 = 2.0",), "rows=3, grad=True"),
    Step(("m.requires_grad_(False)", "m.k0 = 1"), "rows=1, step=True"),
)


def forgetful(f: Any, **options: Any) -> Any:
    """Function in the place of `tj.jit` that calls a module as it was at first."""
    import copy

    kept = copy.deepcopy(f)
    return lambda *args, **kwargs: kept(*args, **kwargs)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS)
def test_a_program_in_each_way(way: str) -> None:
    assert compare(str(Program(("factor",), way, STEPS))) == []


def test_a_planted_fault_is_found() -> None:
    text = str(Program(("factor",), "module", STEPS))
    (found,) = compare(text, forgetful)
    assert found.startswith("step ")
    assert compare(text, lambda f, **options: f) == []


@pytest.mark.parametrize("part", PARTS)
def test_parts_are_programs(part: str) -> None:
    program = Program((part,), "module", (Step((), "rows=3"),))
    compile(str(program), part, "exec")
    lines = PARTS[part].numbered(PARTS[part].changes, 0)
    for line in (*lines, *texts.CHANGES):
        compile(line, part, "exec")


def test_a_number_makes_one_program() -> None:
    first, again = ([str(texts.made(number)) for number in range(20)] for _ in range(2))
    assert first == again
    assert len({*first}) == 20


def test_jit_gets_what_the_way_says() -> None:
    seen: list[dict[str, Any]] = []

    def jit(f: Any, **options: Any) -> Any:
        seen.append(options)
        return tj.jit(f, **options)

    assert compare(str(Program(("factor",), "dynamic", STEPS[:1])), jit) == []
    assert seen == [{"dynamic": True}]
