"""Calls by their canonical names compute what the calls compute: operators, and all of op_db."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import os
from typing import Any

import pytest
import torch
from tj_core.ir.proxy import TensorProxy
from tj_core.ir.symbol import Constant
from tj_core.ir.tree import map_tree
from tj_torch.ops.names import Names, resolve

X = TensorProxy("x", (2, 3))
SHARED = Names()


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def canonical_call(target: Any, args: Any, kwargs: Any) -> Any:
    """The call under its canonical name, found again from the name alone."""
    named = SHARED.symbol(target, tuple(args), kwargs, is_tensor)
    values = map_tree(lambda c: c.value, named.args, Constant)
    return resolve(named.symbol)(*values, **named.kwargs)


def outcome(call: Any) -> Any:
    """What ``call`` returns, or the type of what it raises."""
    try:
        return call()
    except (TypeError, RuntimeError, NotImplementedError, ZeroDivisionError, ValueError) as error:
        return type(error)


def same(got: Any, expected: Any) -> bool:
    if not is_tensor(expected) or not is_tensor(got):
        return bool(got is expected or got == expected)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    return torch.equal(bits(got), bits(expected))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8)


OPERANDS = (
    torch.tensor([1.5, -2.0, 3.0]),
    torch.tensor([1.5, -2.0, 3.0], dtype=torch.float16),
    torch.tensor([3, -2, 1]),
    torch.tensor([3, 2, 1], dtype=torch.uint8),
    torch.tensor([True, False, True]),
    torch.tensor([1 + 2j, 2 - 1j, 1j]),
    torch.tensor(2),
    2,
    -3,
    True,
    2.5,
    math.inf,
    1j,
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "op",
    [
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "matmul",
        "and_",
        "or_",
        "xor",
        "lshift",
        "rshift",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "iadd",
        "isub",
        "imul",
        "itruediv",
        "ifloordiv",
        "imod",
        "ipow",
        "imatmul",
        "iand",
        "ior",
        "ixor",
        "ilshift",
        "irshift",
    ],
)
def test_binary_operators(op: str) -> None:
    function = getattr(operator, op)
    for a, b in itertools.product(OPERANDS, OPERANDS):
        if not (is_tensor(a) or is_tensor(b)):
            continue
        copy = a.clone() if is_tensor(a) else a
        other = a.clone() if is_tensor(a) else a
        expected = outcome(lambda a=copy, b=b: function(a, b))
        got = outcome(lambda a=other, b=b: canonical_call(function, (a, b), {}))
        assert same(got, expected), (a, b, got, expected)
        assert same(other, copy)
        assert (got is other) == (expected is copy)


@pytest.mark.parametrize("op", ["neg", "pos", "abs", "invert"])
def test_unary_operators(op: str) -> None:
    function = getattr(operator, op)
    for a in OPERANDS:
        if is_tensor(a):
            expected = outcome(lambda a=a: function(a))
            got = outcome(lambda a=a: canonical_call(function, (a,), {}))
            # A refusal is a refusal: ~ raises a TypeError where bitwise_not has no kernel.
            assert same(got, expected) or (expected is TypeError and got is NotImplementedError)


@pytest.mark.filterwarnings("ignore")
def test_dunder_methods() -> None:
    words = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"]
    dunders = [f"__{r}{w}__" for r in ("", "r", "i") for w in words]
    dunders += ["__eq__", "__lt__", "__rlshift__", "__rshift__", "__ilshift__", "__rmatmul__"]
    others = [*OPERANDS, None, "a"]
    for dunder, a, b in itertools.product(dunders, OPERANDS[:7], others):
        copy, other = a.clone(), a.clone()
        expected = outcome(lambda: getattr(copy, dunder)(b))  # noqa: B023
        got = outcome(lambda: canonical_call(dunder, (other, b), {}))  # noqa: B023
        # A dunder method answers NotImplemented where the function raises.
        refused = expected is NotImplemented and got in (TypeError, NotImplemented)
        assert refused or same(got, expected), (dunder, a, b, got, expected)


# ---------------------------------------------------------------------------- op_db

UNKNOWN = "torch.testing._internal needs a package that is missing"
FULL = os.environ.get("TJ_FULL") == "1"


def op_db() -> list[Any]:
    pytest.importorskip("expecttest", reason=UNKNOWN)
    from tj_conformance.op_db import operations

    return operations()


def samples(op: Any, count: int) -> list[tuple[Any, dict[str, Any]]]:
    from tj_conformance.op_db import sample_arguments

    return list(sample_arguments(op, torch.float32, count, grad=False))


def is_defined(op: Any, function: Any, args: Any, kwargs: Any) -> bool:
    """Whether eager gives one answer to one call."""
    from tj_conformance.known import UNDEFINED
    from tj_conformance.op_db import full_name
    from tj_conformance.oracle import compare

    try:
        return full_name(op) not in UNDEFINED and not compare(function, function, args, kwargs)
    except Exception:
        return False


class Canonical(torch.fx.Interpreter):
    """Runs a graph with each call under its canonical name."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return canonical_call(target, args, kwargs)

    call_method = call_function  # type: ignore[assignment]


def graphs(function: Any, args: Any, kwargs: Any) -> list[tuple[torch.fx.GraphModule, Any]]:
    """The graphs that Dynamo makes of one call, with their inputs."""
    found = []

    def record(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append((graph, list(inputs)))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(lambda args, kwargs: function(*args, **kwargs), backend=record, dynamic=False)(
        args, kwargs
    )
    return found


@pytest.mark.filterwarnings("ignore")
def test_graphs_of_op_db() -> None:
    from tj_conformance.oracle import compare
    from tj_conformance.twins import clone_tree

    nodes, failures, uncaptured = 0, [], []
    for op in op_db()[:: 1 if FULL else 8]:
        for args, kwargs in samples(op, 4 if FULL else 1):
            if not is_defined(op, op.op, args, kwargs):
                continue
            try:
                captured = graphs(op.op, *clone_tree((args, kwargs)))
            except Exception:  # Dynamo's own limits
                uncaptured.append(op.name)
                continue
            for graph, inputs in captured:
                nodes += sum(n.op.startswith("call_") for n in graph.graph.nodes)
                plain, named = torch.fx.Interpreter(graph), Canonical(graph)
                differences = compare(plain.run, named.run, inputs, {})
                if differences:
                    failures.append((op.name, str(graph.graph), *map(str, differences)))
    print(f"{nodes} calls; not captured: {sorted(set(uncaptured))}")
    assert not failures
    assert nodes > 50


def _variants(op: Any) -> list[Any]:
    kinds = ("method_variant", "inplace_variant", "operator_variant", "inplace_operator_variant")
    functions = [getattr(source, k, None) for source in (op, *op.aliases) for k in kinds]
    functions += [alias.op for alias in op.aliases]
    return [f for f in functions if f is not None]


@pytest.mark.filterwarnings("ignore")
def test_variants_of_op_db() -> None:
    """Methods, in-place methods, operators and aliases of all of op_db."""
    from tj_conformance.oracle import compare

    calls = 0
    for op in op_db()[:: 1 if FULL else 4]:
        cases = samples(op, 8 if FULL else 3) if _variants(op) else []
        for function, (args, kwargs) in itertools.product(_variants(op), cases):
            method = getattr(function, "__objclass__", None) is torch._C.TensorBase
            target = function.__name__ if method else function
            if not is_defined(op, function, args, kwargs):
                continue
            run = functools.partial(_spelled, target)
            assert not compare(function, run, args, kwargs), (op.name, target, args, kwargs)
            calls += 1
    assert calls > 200


def _spelled(target: Any, *args: Any, **kwargs: Any) -> Any:
    return canonical_call(target, args, kwargs)


@pytest.mark.filterwarnings("ignore")
def test_aliases_of_op_db_share_a_symbol() -> None:
    """All but those whose parameters differ in names, types or defaults."""
    apart = set()
    for op in op_db():
        for alias in op.aliases:
            args = (X,) * 2
            one, two = (Names().symbol(f, args, {}).symbol for f in (op.op, alias.op))
            if one != two:
                apart.add(alias.name)
    assert apart <= SEPARATE, apart - SEPARATE


# Written in Python, or with other parameters, or one overload of the other.
SEPARATE = {
    "adjoint",
    "group_norm",
    "layer_norm",
    "maximum",
    "minimum",
    "nn.functional.log_softmax",
    "nn.functional.sigmoid",
    "nn.functional.softmax",
    "nn.functional.tanh",
    "rms_norm",
    "special.log_softmax",
    "special.round",
    "special.softmax",
}


def test_functions_have_their_methods_in_pytorchs_table() -> None:
    """Every method that became a function is generated from one entry with both variants."""
    yaml = pytest.importorskip("yaml")
    import torchgen

    home = os.path.dirname(torchgen.__file__)
    with open(f"{home}/packaged/ATen/native/native_functions.yaml") as file:
        entries = yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    variants: dict[str, set[str]] = {}
    for entry in entries:
        word = entry["func"].partition("(")[0].partition(".")[0]
        kinds = entry.get("variants", "function").replace(" ", "").split(",")
        by_hand = entry.get("manual_cpp_binding", False)  # compiled from something else
        variants.setdefault(word, set()).update({"function", "method"} if by_hand else kinds)
    names = Names()
    checked = 0
    for method, count in itertools.product(dir(torch.Tensor), range(4)):
        if method.startswith("__"):
            continue
        named = names.symbol(method, (X,) * (count + 1), {})
        if isinstance(named.function, type(torch.add)):
            entry = variants.get(method)
            assert entry is None or {"function", "method"} <= entry, method
            checked += entry is not None
    assert checked > 500
