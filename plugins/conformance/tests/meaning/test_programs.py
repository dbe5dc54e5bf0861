"""Programs whose meaning is Python's against eager: results, state, order, types, exceptions."""

from __future__ import annotations

import pytest
import torch
from tj_conformance.meaning.programs import PROGRAMS
from tj_conformance.meaning.scripts import Script, agreement

NAMES = tuple(PROGRAMS)


@pytest.mark.sampled(160)
@pytest.mark.parametrize("name", NAMES)
def test_a_program(name: str) -> None:
    torch._dynamo.reset()
    found = agreement(PROGRAMS[name])
    assert not found.differences, f"{found}\n\n{PROGRAMS[name]}"
    assert len(found.warned) == len(set(found.warned))
    assert len(found.warned) == len(found.fallbacks)


WRONG = {
    "identity": "attribute of object, now is a",
    "one argument": "arguments appended, two at first",
    "memory": "memory of same after torch._dynamo.graph_break()",
    "draws": "random.Random(1) as attribute: random()",
    "rounding": "size: round(n, -1)",
    "text": "int as argument: f'{n:>5}'",
    "zeros": "float as argument: x / n",
    "generator": "generator plain, returned",
    "cleaning up": "generator cleaning up, dropped",
    "remembering": "functools.lru_cache with a side effect",
    "deque": "d: o.appendleft(9)",
    "set": "s: o.add(5)",
    "order": "od: o.move_to_end('a')",
    "tensors": "tensors: x in [y, x]",
}
"""A program of each kind for which torch.compile differs from eager."""


@pytest.mark.parametrize("name", WRONG.values(), ids=WRONG)
def test_what_dynamo_gets_wrong(name: str) -> None:
    torch._dynamo.reset()
    found = agreement(PROGRAMS[name])
    assert not found.differences, f"{found}\n\n{PROGRAMS[name]}"


def test_a_program_that_differs_is_found() -> None:
    script = Script("n = [0]\ndef f(x):\n    n[0] += 1\n    return x + n[0]", ("f(1)", "f(1)"), "n")
    assert not agreement(script, lambda f: f).differences
    assert len(agreement(script, lambda f: lambda x: x + 1).differences) == 2


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) > 900
