"""Regions of equal parts as functions: each kernel of a part runs for all parts in one call.

That is possible where the generated code of a part allocates its results, calls its kernels and
returns. Other code runs part by part.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tj_core.extend import TensorProxy

from tj_inductor.kernels import collected_kernel

if TYPE_CHECKING:
    from tj_core.extend import Boxed, FusionRegion

    from tj_inductor.adapter.modules import Compiled
    from tj_inductor.kernels import Waiting
    from tj_inductor.repeated.finding import Equal, Place

__all__ = ["all_parts"]

ALLOCATES = "empty_strided_cpu"
"""The function of generated code that allocates memory."""


def all_parts(region: FusionRegion, parts: Sequence[Equal], made: Sequence[Compiled]) -> Boxed:
    """The function of ``region``, whose ``parts`` have been ``made``."""
    codes = [code for code in map(_code, made) if code is not None]
    one_by_one = _one_by_one(region, parts, made)
    if len(codes) < len(made):
        return one_by_one

    @functools.cache
    def function() -> Boxed:
        # The kernels have been compiled when the region is called, or are about to be.
        return _by_rows(region, parts, codes) or one_by_one

    return lambda box: function()(box)


def _one_by_one(region: FusionRegion, parts: Sequence[Equal], made: Sequence[Compiled]) -> Boxed:
    count = len(region.outputs)

    def run(box: list[Any]) -> Sequence[Any]:
        results: list[Any] = [None] * count
        for equal, compiled in zip(parts, made, strict=True):
            for row, places in zip(equal.inputs, equal.outputs, strict=True):
                found = compiled.function([_taken(box[i], index) for i, index in row])
                for place, result in zip(places, found, strict=True):
                    results[place] = result
        box.clear()
        return results

    return run


def _taken(tensor: Any, index: int | None) -> Any:
    return tensor if index is None else tensor.select(0, index)


@dataclass(slots=True)
class _Code:
    """The code of a part: allocations, kernels with their arguments, and results.

    Values are numbered: the inputs, then the allocated ones in order.
    """

    allocations: list[Callable[[], Any]] = field(default_factory=list)
    kernels: list[tuple[Waiting, list[int]]] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)


def _code(compiled: Compiled) -> _Code | None:
    """The code of ``compiled``, if it can run for many parts at once."""
    called: Any = inspect.unwrap(compiled.called) if compiled.called is not None else None
    scope: dict[str, Any] = getattr(getattr(called, "__func__", called), "__globals__", {})
    module = ast.parse(compiled.source)
    functions = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and node.name == "call"
    ]
    if compiled.same or len(functions) != 1 or ALLOCATES not in scope:
        return None
    code, values, kernels = _Code(), dict[str, int](), _kernels(module)
    try:
        for statement in functions[0].body:
            _read(statement, scope, kernels, code, values)
    except (_Unknown, KeyError):
        return None
    made = range(len(values) - len(code.allocations), len(values))
    return code if code.returned and set(made) <= {*code.returned} else None


class _Unknown(Exception):
    """Mark of a statement that is none of those that are known."""


def _kernels(module: ast.Module) -> dict[str, Waiting]:
    """The kernels of a module of generated code.

    They are read from its text: Inductor gives a module of equal text that it has loaded before,
    whose kernels may be compiled, and to no functions of rows.
    """
    found: dict[str, Waiting] = {}
    for statement in module.body:
        match statement:
            case ast.Assign(
                [ast.Name(name)],
                ast.Call(ast.Attribute(_, "cpp_pybinding"), [types, ast.Constant(str(source))], []),
            ):
                found[name] = collected_kernel(ast.literal_eval(types), source)
    return found


def _read(
    statement: ast.stmt,
    scope: dict[str, Any],
    kernels: Mapping[str, Waiting],
    code: _Code,
    values: dict[str, int],
) -> None:
    """Add ``statement`` to ``code``.

    :raises _Unknown: if that is not possible.
    :raises KeyError: if it reads an unknown value.
    """
    match statement:
        case ast.Assign([ast.Tuple(names)], ast.Name("args")):
            values.update((_name(name), i) for i, name in enumerate(names))
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name(called), args, [])) if (
            called == ALLOCATES
        ):
            given = [eval(ast.unparse(arg), scope) for arg in args]
            values[name] = len(values)
            code.allocations.append(functools.partial(scope[ALLOCATES], *given))
        case ast.Expr(ast.Call(ast.Name(called), args, [])):
            code.kernels.append((kernels[called], [values[_name(arg)] for arg in args]))
        case ast.Return(ast.Tuple(found)):
            code.returned += [values[_name(x)] for x in found]
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("args"), "clear"), [], [])) | ast.Delete():
            pass
        case _:
            raise _Unknown


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise _Unknown
    return node.id


def _by_rows(region: FusionRegion, parts: Sequence[Equal], codes: Sequence[_Code]) -> Boxed | None:
    """The function that runs each kernel for all parts; None if one cannot be run by rows.

    The kernels' tensors are the inputs of the region, then all that parts allocate.
    """
    allocations: list[Callable[[], Any]] = []
    calls: list[tuple[Callable[[list[Any], bytes], None], bytes]] = []
    outputs: dict[int, int] = {}
    for equal, code in zip(parts, codes, strict=True):
        rows: list[list[Place]] = []
        for taken, made in zip(equal.inputs, equal.outputs, strict=True):
            start = len(region.inputs) + len(allocations)
            row = [*taken, *((start + i, None) for i in range(len(code.allocations)))]
            allocations += code.allocations
            outputs.update(zip(made, (row[i][0] for i in code.returned), strict=True))
            rows.append(row)
        for kernel, places in code.kernels:
            by_rows = kernel.by_rows()
            if by_rows is None:
                return None
            numbers = [n for row in rows for i in places for n in _address(region, row[i])]
            calls.append((by_rows, struct.pack(f"={len(numbers)}i", *numbers)))
    # Equal parts have several outputs: of one, a getter would return no tuple.
    results: Any = operator.itemgetter(*(outputs[i] for i in range(len(outputs))))

    def run(box: list[Any]) -> Sequence[Any]:
        tensors = box + [make() for make in allocations] if allocations else box
        for by_rows, table in calls:
            by_rows(tensors, table)
        found: Sequence[Any] = results(tensors)
        box.clear()
        return found

    return run


def _address(region: FusionRegion, place: Place) -> tuple[int, int]:
    """A tensor, and an offset in bytes."""
    i, index = place
    if index is None:
        return i, 0
    taken = region.inputs[i]
    assert isinstance(taken, TensorProxy)
    return i, index * (taken.dtype.bits // 8)
