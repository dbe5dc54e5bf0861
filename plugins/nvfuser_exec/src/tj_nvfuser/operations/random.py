"""Random numbers, with option ``random``: functions of a state drawn before."""

from __future__ import annotations

import functools

from tj_nvfuser.definition import Seeds, Value, dtype_of
from tj_nvfuser.draws import NORMAL, UNIFORM
from tj_nvfuser.operations.call import Call, Operation, Operations, Translate

__all__ = ["OPERATIONS"]


def numbers(name: str) -> Translate:
    """Make the translation: "uniform" from 0 to 1, or "normal" of mean 0 and deviation 1."""

    def translate(call: Call, state: Seeds, like: Value) -> Value:
        return call.d.numbers(name, state, call.out.shape, dtype_of(call.out))

    return translate


random = functools.partial(Operation, option="random", seeded=True)

OPERATIONS: Operations = {
    UNIFORM: random(numbers("uniform")),
    NORMAL: random(numbers("normal")),
}
"""Functions of states, which are their first arguments, by the names of their symbols."""
