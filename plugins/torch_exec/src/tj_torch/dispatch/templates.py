"""The two functions generated per jitted program: the frame that is captured, and the call.

``root`` is what Dynamo looks through: it calls the program, so that hooks of modules are captured
and guarded too. ``call`` is what the user calls: it checks the guards of the compiled entries in
order and runs the first that holds. Plain functions get both with their own parameters, which
saves packing arguments twice; everything else gets ``*args, **kwargs``.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tj_core.extend import define

__all__ = ["Frame", "Row", "make_frame"]

Row = tuple[Callable[[dict[str, Any]], bool], Callable[..., Any]]
"""A guard check on the frame's locals, and the function to run where it holds."""

_serial = itertools.count()

_SOURCE = """
def make(fn, miss, modes, duals):
    rows = ()
    hits = 0

    def {root}({parameters}):
        return fn({arguments})

    def call({parameters}):
        frame = {{{locals}"fn": fn}}
        if not modes() and duals._current_level < 0:
            for check, run in rows:
                if check(frame):
                    nonlocal hits
                    hits += 1
                    return run({arguments})
        return miss(frame, {positional}, {keywords})

    def publish(new):
        nonlocal rows
        rows = new

    return {root}, call, publish, lambda: hits
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """What was generated for one program. ``publish`` sets the rows, ``hits`` counts."""

    root: types.FunctionType
    call: Callable[..., Any]
    publish: Callable[[tuple[Row, ...]], None]
    hits: Callable[[], int]


def make_frame(
    fn: Any,
    miss: Callable[[dict[str, Any], tuple[Any, ...], dict[str, Any]], Any],
    modes: Callable[[], int],
    duals: types.ModuleType,
) -> Frame:
    """Generate the functions for ``fn``.

    ``miss`` is called where no row holds, with the frame's locals and the arguments. No row holds
    while ``modes``, the number of modes that interpret the program, is not zero, or a level of
    forward-mode AD is entered, which ``duals`` counts: guards do not see these. Each root has
    a code object with a name of its own: Dynamo keeps what it learns of dynamic sizes per code.
    """
    names = _plain_parameters(fn)
    number = next(_serial)
    root = f"tj_root_{number}"
    if names is None:
        fields = {
            "parameters": "*args, **kwargs",
            "arguments": "*args, **kwargs",
            "locals": '"args": args, "kwargs": kwargs, ',
            "positional": "args",
            "keywords": "kwargs",
        }
    else:
        fields = {
            "parameters": ", ".join(names),
            "arguments": ", ".join(names),
            "locals": "".join(f'"{n}": {n}, ' for n in names),
            "positional": f"({''.join(n + ', ' for n in names)})",
            "keywords": "{}",
        }
    scope: dict[str, Any] = {}
    # No code of this title is passed over by Dynamo: the root is what it captures.
    make = define(_SOURCE.format(root=root, **fields), "make", scope, "tj_root")
    return Frame(*make(fn, miss, modes, duals))


def _plain_parameters(fn: Any) -> list[str] | None:
    """The parameters of a function that takes them all by position, without defaults; else None.

    Defaults stay with the function, which may change them.
    """
    if not isinstance(fn, types.FunctionType):
        return None
    parameters = inspect.signature(fn, follow_wrapped=False).parameters.values()
    if any(
        p.kind is not p.POSITIONAL_OR_KEYWORD or p.default is not p.empty or p.name in _TAKEN
        for p in parameters
    ):
        return None
    return [p.name for p in parameters]


def _used() -> frozenset[str]:
    """The names that the functions with a program's parameters use beside these."""
    empty = dict.fromkeys(("parameters", "arguments", "locals"), "")
    source = _SOURCE.format(root="root", positional="()", keywords="{}", **empty)
    (make,) = _inside(compile(source, "", "exec"))
    codes = [code for code in _inside(make) if code.co_name in ("root", "call")]
    return frozenset(n for c in codes for n in (*c.co_names, *c.co_varnames, *c.co_freevars))


def _inside(code: types.CodeType) -> list[types.CodeType]:
    return [c for c in code.co_consts if isinstance(c, types.CodeType)]


_TAKEN = _used()
"""Names that parameters cannot have there."""
