"""Generated functions of a jitted program: the frame to capture, the callable, and its arguments.

Dynamo traces ``root``, which calls the program, so that hooks of modules are captured and guarded,
too. The user calls ``call``, which checks the guards of the compiled entries in order and runs the
first entry whose guards hold. Both have the parameters of a plain function, so arguments are not
packed twice; for any other callable they take ``*args, **kwargs``.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tj_core.extend import define

from tj_torch.torch_private.switches import UNREAD, Stances

__all__ = ["Frame", "Row", "make_frame"]

Row = tuple[Callable[[dict[str, Any]], bool], Callable[..., Any]]
"""A guard check on the frame's locals, and the function to run where it holds."""

# Numbers of files of generated code: `linecache` is the process's.
_serial = itertools.count()

_SOURCE = """
def make(fn, miss, modes, duals, stances):
    rows = ()
    hits = 0
    usual = None

    def {root}({parameters}):
        return fn({arguments})

    def call({parameters}):
        frame = {{{locals}"fn": fn}}
        if stances._stance is usual and not modes() and duals._current_level < 0:
            for check, run in rows:
                if check(frame):
                    nonlocal hits
                    hits += 1
                    return run({arguments})
        return miss(frame, {positional}, {keywords})

    def bind({parameters}):
        return {{{locals}"fn": fn}}, {positional}, {keywords}

    def publish(new):
        nonlocal rows
        rows = new

    def accept(known, stance):
        nonlocal stances, usual
        stances = known
        usual = stance

    return {root}, call, bind, publish, lambda: hits, accept
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """Functions generated for one program.

    ``bind`` returns the arguments of a call for which no row holds. ``publish`` sets the rows,
    ``hits`` counts the hits. ``accept`` sets where PyTorch's stance is read, and the stance under
    which rows are tried.
    """

    root: types.FunctionType
    call: Callable[..., Any]
    bind: Callable[..., tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]]
    publish: Callable[[tuple[Row, ...]], None]
    hits: Callable[[], int]
    accept: Callable[[Stances, Any], None]


def make_frame(
    fn: Any,
    miss: Callable[[dict[str, Any], tuple[Any, ...], dict[str, Any]], Any],
    modes: Callable[[], int],
    duals: types.ModuleType,
) -> Frame:
    """Generate the functions for ``fn``.

    ``miss`` is called with the frame's locals and the arguments if no row holds. No row is tried in
    three cases: ``modes``, the number of modes that interpret the program, is not zero; the call is
    within a level of forward-mode AD, which ``duals`` counts; PyTorch's stance is not the one given
    to `Frame.accept` last. Dynamo has no guards on the first two. Each root has a code object with
    a name of its own, since Dynamo keeps what it learns of dynamic sizes per code object.
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
    # Dynamo skips generated code by its file name, but not under this title: it traces the root.
    make = define(_SOURCE.format(root=root, **fields), "make", scope, "tj_root")
    return Frame(*make(fn, miss, modes, duals, UNREAD))


def _plain_parameters(fn: Any) -> list[str] | None:
    """Parameters of a function that takes them all by position and without defaults; else None.

    A copy of the defaults would miss later changes of ``__defaults__``.
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
    """Names that the generated functions use beside the program's parameters."""
    empty = dict.fromkeys(("parameters", "arguments", "locals"), "")
    source = _SOURCE.format(root="root", positional="()", keywords="{}", **empty)
    (make,) = _inside(compile(source, "", "exec"))
    codes = [code for code in _inside(make) if code.co_name in ("root", "call")]
    return frozenset(n for c in codes for n in (*c.co_names, *c.co_varnames, *c.co_freevars))


def _inside(code: types.CodeType) -> list[types.CodeType]:
    return [c for c in code.co_consts if isinstance(c, types.CodeType)]


_TAKEN = _used()
"""Names that a program's parameters must not have in the generated functions."""
