"""Calls by canonical names compute the same: Python's operators, and aliases in op_db."""

from __future__ import annotations

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
from tj_torch.ops.naming.names import Names
from tj_torch.ops.naming.resolve import resolve

X = TensorProxy("x", (2, 3))
SHARED = Names()


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def canonical_call(target: Any, args: Any, kwargs: Any) -> Any:
    """Call by canonical name, with its function looked up from the name alone."""
    named = SHARED.symbol(target, tuple(args), kwargs, is_tensor)
    values = map_tree(lambda c: c.value, named.args, Constant)
    return resolve(named.symbol)(*values, **named.kwargs)


def outcome(call: Any) -> Any:
    """Result of ``call``, or the type of its error."""
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


@pytest.mark.sampled(12)
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_aliases_of_op_db_share_a_symbol() -> None:
    """Except aliases whose parameters differ in names, types or defaults."""
    pytest.importorskip("expecttest", reason="torch.testing._internal needs a package")
    from tj_conformance.databases.op_db import operations

    apart = set()
    for op in operations():
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
    """Each method spelled as a function is generated from one schema entry with both variants."""
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
    assert checked > 450, "with tensors for sizes, methods stay methods"
