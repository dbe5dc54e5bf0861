"""Calls that must raise, by PyTorch's ``op_db``: tj must raise what eager raises."""

from __future__ import annotations

import itertools
import linecache
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tj_core as tj
import torch
from tj_core.extend import notes

from tj_conformance.databases import op_db
from tj_conformance.databases.op_db import full_name, operations
from tj_conformance.oracle.device import device
from tj_conformance.oracle.result import Kind, Problem, Result
from tj_conformance.oracle.twins import clone_tree

__all__ = ["error_arguments", "failing_operations", "run_error_inputs"]

# Numbers of modules that are made: `sys.modules` and `linecache` are the process's.
_serial = itertools.count()

_WHOLE = """\
def program(*args, **kwargs):
    return op(*args, **kwargs)
"""

_AFTER_A_BREAK = """\
def program(*args, **kwargs):
    log.append("before")
    graph_break()
    return op(*args, **kwargs)
"""


@dataclass(frozen=True, slots=True)
class _Program:
    """A program that calls one operation, in a file of its own, and the place of the call."""

    call: Callable[..., Any]
    line: str
    log: list[str]


def failing_operations() -> list[Any]:
    """The entries of op_db with inputs that must raise, in op_db's order."""
    return [op for op in operations(None) if op.error_inputs_func is not None]


def error_arguments(op: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Positional and keyword arguments of each call that must raise."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(op.error_inputs(device()))
    for error_input in found:
        sample = error_input.sample_input
        yield (sample.input, *sample.args), sample.kwargs


def run_error_inputs(
    op: Any, *, after_a_break: bool = False, jit: Callable[[Any], Any] = tj.jit
) -> Result:
    """Compare the exception of each call with eager's: type, message, the user's line, warnings.

    Each is called twice: the second call finds the compiled program. With ``after_a_break`` the
    call comes after a graph break, so on the path of PyTorch's own hook, and the code before the
    break must run once.
    """
    result = Result(full_name(op))
    for number, (args, kwargs) in enumerate(error_arguments(op)):
        torch.compiler.reset()
        program = _program(op, _AFTER_A_BREAK if after_a_break else _WHOLE)
        expected = _Outcome.of(op.op, args, kwargs)
        if expected.error is None:
            result.eager_errors += 1  # no error at all: the one case in which nothing is compared
            continue
        result.samples += 1
        jitted = jit(program.call)
        for turn in ("compiling", "again"):
            got = _Outcome.of(jitted, args, kwargs)
            found = [*got.differences(expected, program), *_repeated(program, after_a_break)]
            where = f"input {number}, {turn}"
            result.problems += [Problem(Kind.ERROR, where, what) for what in found]
    return result


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Outcome of a call that must raise."""

    error: Exception | None
    warned: tuple[str, ...]

    @classmethod
    def of(cls, function: Callable[..., Any], args: Any, kwargs: Any) -> _Outcome:
        args, kwargs = clone_tree((args, kwargs))
        raised = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.set_warn_always(True)  # also what the same process was warned of before
            try:
                function(*args, **kwargs)
            except Exception as error:
                raised = error
            finally:
                torch.set_warn_always(False)
        theirs = [w for w in caught if not issubclass(w.category, tj.TjWarning)]
        return cls(raised, tuple(f"{w.category.__name__}: {w.message}" for w in theirs))

    def differences(self, eager: _Outcome, program: _Program) -> Iterator[str]:
        if type(self.error) is not type(eager.error):
            yield f"{_text(self.error)} instead of {_text(eager.error)}"
        elif str(self.error) != str(eager.error):
            yield f"the message {str(self.error)!r} instead of {str(eager.error)!r}"
        noted = [] if self.error is None else notes(self.error)
        # Where op_db calls an operation through `direct`, that is the innermost line.
        lines = (program.line, f"{op_db.__file__}:")
        if not any(line in note for note in noted for line in lines):
            yield f"no note names {program.line}: {noted}"
        if self.warned != eager.warned:
            yield f"the warnings {self.warned} instead of {eager.warned}"


def _text(error: Exception | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {error}"


def _repeated(program: _Program, after_a_break: bool) -> Iterator[str]:
    """Yield a complaint if the code before the call has not run exactly once."""
    if len(program.log) != int(after_a_break):
        yield f"what stands before the graph break happened {len(program.log)} times"
    program.log.clear()


def _program(op: Any, source: str) -> _Program:
    """A program from ``source``, with a file name that is neither PyTorch's nor tj's."""
    file = f"<op_db {full_name(op)} {next(_serial)}>"
    log: list[str] = []
    scope = {"op": op.op, "log": log, "graph_break": torch._dynamo.graph_break}
    exec(compile(source, file, "exec"), scope)
    lines = source.splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)
    return _Program(scope["program"], f"{file}:{len(lines)}", log)
