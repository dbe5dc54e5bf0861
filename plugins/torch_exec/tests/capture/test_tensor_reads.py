"""Attributes that programs read of tensors: as in eager, or with a graph break."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch

pytestmark = [
    pytest.mark.sampled(16),
    pytest.mark.filterwarnings("ignore:tj. .*:tj_core.TjWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]

NOT_READ = {
    "__annotations__": "of the class",
    "__class__": "its type",
    "__dict__": "its own attributes",
    "__dlpack_c_exchange_api__": "of the class",
    "__doc__": "of the class",
    "__module__": "of the class",
    "__torch_function__": "of the class",
    "__weakref__": "of the class",
    "_cdata": "an address, which differs from call to call",
    "volatile": "gone",
}
"""Reasons for attributes that are left out, as they say nothing of the tensor."""

METHODS = frozenset(
    {
        "__array__",
        "__bool__",
        "__complex__",
        "__dlpack_device__",
        "__float__",
        "__int__",
        "__len__",
        "__nonzero__",
        "_is_view",
        "_is_zerotensor",
        "_typed_storage",
        "_use_count",
        "dense_dim",
        "dim",
        "dim_order",
        "element_size",
        "get_device",
        "is_complex",
        "is_conj",
        "is_contiguous",
        "is_distributed",
        "is_floating_point",
        "is_inference",
        "is_neg",
        "is_nonzero",
        "is_pinned",
        "is_shared",
        "is_signed",
        "item",
        "ndimension",
        "nelement",
        "numel",
        "numpy",
        "size",
        "sparse_dim",
        "storage",
        "storage_offset",
        "storage_type",
        "stride",
        "tolist",
        "type",
        "untyped_storage",
    }
)
"""Methods without arguments that return no tensor."""


def attributes() -> list[str]:
    """All properties of `torch.Tensor` in this PyTorch."""
    kinds = (types.GetSetDescriptorType, property)
    found = {n for k in torch.Tensor.__mro__ for n, v in vars(k).items() if isinstance(v, kinds)}
    return sorted(found - set(NOT_READ))


def reader(name: str) -> Callable[[torch.Tensor], Any]:
    """Python function that reads the attribute, or calls the method, ``name``."""
    scope: dict[str, Any] = {}
    call = "()" if name in METHODS else ""
    exec(f"def read(x):\n    return x.{name}{call}", scope)
    read: Callable[[torch.Tensor], Any] = scope["read"]
    return read


NAMES = [*attributes(), *sorted(m for m in METHODS if hasattr(torch.Tensor, m))]


def comparable(value: Any, of: torch.Tensor) -> Any:
    """Comparable form of a value that was read; addresses are compared with that of ``of``."""
    if isinstance(value, torch.Tensor):
        facts = value.dtype, tuple(value.shape), value.stride(), value.storage_offset()
        return *facts, value.requires_grad, value.is_leaf, value.tolist()
    if isinstance(value, torch.UntypedStorage | torch.TypedStorage):
        return type(value), len(value), value.data_ptr() == of.untyped_storage().data_ptr()
    if isinstance(value, list | tuple):
        return [comparable(v, of) for v in value]
    if isinstance(value, bool | int | float | complex | str | torch.dtype | torch.layout | None):
        return type(value), value
    if isinstance(value, torch.device):
        return value
    return type(value).__name__ if type(value).__module__ != "torch.autograd" else "a node"


def outcome(program: Callable[..., Any], make: Callable[[], torch.Tensor]) -> Any:
    """Values that ``program`` reads of its first result, or the type of its error."""
    try:
        of, *read = program(make())
    except Exception as error:
        return type(error)
    return [comparable(value, of) for value in read]


def plain() -> torch.Tensor:
    return torch.arange(1.0, 7.0).reshape(2, 3)


def leaf() -> torch.Tensor:
    return plain().requires_grad_()


def same_reads(program: Callable[..., Any], *makes: Callable[[], torch.Tensor]) -> None:
    """Check that ``program`` jitted reads the same as eager, of one input after the other."""
    torch.compiler.reset()
    jitted = tj.jit(program)
    for make in makes:
        expected = outcome(program, make)
        if not isinstance(expected, type):  # what must raise is tested elsewhere
            assert outcome(jitted, make) == expected


VALUES = {"input": lambda x: x, "result": lambda x: x * 2, "view": lambda x: x[1:]}
CHANGES = {
    "write": lambda y: y.mul_(2),
    "write to a view": lambda y: y[0].mul_(2),
    "detach_": lambda y: y.detach_(),
    "requires_grad_": lambda y: y.requires_grad_(),
    "transposition": lambda y: y.t_(),
}
EVERY = tuple((v, c) for v in VALUES for c in CHANGES)
OF_A_LEAF = (("result", "detach_"), ("result", "requires_grad_"), ("view", "transposition"))
SOME = {
    "_version": EVERY,
    **dict.fromkeys(("is_leaf", "requires_grad", "grad_fn", "_base", "stride"), OF_A_LEAF),
}
"""Values and changes to test, for attributes that change."""


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_before_and_after_a_change(name: str) -> None:
    read = reader(name)
    for value, change in SOME.get(name, [("result", "write"), ("view", "write")]):
        make, act = VALUES[value], CHANGES[change]

        def program(x: torch.Tensor, make: Any = make, act: Any = act) -> Any:
            y = make(x)
            before = read(y)
            act(y)
            return y, before, read(y)

        same_reads(program, plain, *([leaf] if name in SOME else []))


def used() -> torch.Tensor:
    """Input with a gradient, a history, writes and hooks."""
    x = leaf()
    x.grad = torch.ones(2, 3)
    y = (x * 1).t().contiguous().t().mul_(2)
    y.retain_grad()
    y.register_hook(lambda g: g)
    return y


def unbound() -> torch.Tensor:
    return leaf().mul(2).expand(3, 2, 3).unbind()[1]


def shared() -> torch.Tensor:
    return plain().share_memory_()


def inferred() -> torch.Tensor:
    with torch.inference_mode():
        return plain()


def written() -> torch.Tensor:
    return plain().add_(1)


def offset() -> torch.Tensor:
    return torch.arange(20.0)[3:9].view(2, 3)


def accumulated() -> torch.Tensor:
    x = leaf()
    x.register_post_accumulate_grad_hook(lambda p: None)
    return x


INPUTS = (
    plain, written, leaf, offset, unbound, shared, inferred, used, accumulated, leaf, plain
)  # fmt: skip


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("imag", "__bool__")])
def test_an_attribute_of_an_input_that_changes_between_calls(name: str) -> None:
    read = reader(name)

    def program(x: torch.Tensor) -> Any:
        x.detach() + 1
        return x, read(x)

    same_reads(program, *INPUTS)


USES: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "decides": lambda x, value: x * (2 if value else 3),
    "is a factor": lambda x, value: (
        x * value if isinstance(value, int | float) else len(str(type(value)))
    ),
}
"""Results that are computed with a value; one that is returned is read again in each call."""


@pytest.mark.sampled(16)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("imag", "__bool__")])
def test_an_attribute_of_an_input_that_is_used(name: str, use: str) -> None:
    read, used_in = reader(name), USES[use]

    def program(x: torch.Tensor) -> Any:
        return x, used_in(x.detach(), read(x))

    same_reads(program, *INPUTS)


def test_the_size_of_memory_around_an_input() -> None:
    def program(x: torch.Tensor) -> Any:
        return x, x.detach() * x.untyped_storage().size()

    same_reads(program, plain, lambda: torch.arange(20.0)[:6].view(2, 3), plain)


def test_versions_read_in_between_count_writes() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x * 1
        v = y._version
        y.mul_(2)
        return y._version - v, y

    with pytest.warns(tj.TjWarning, match="Tensor._version"):
        assert tj.jit(f)(plain())[0] == f(plain())[0] == 1


@pytest.mark.parametrize("full", [False, True])
def test_versions_below_torch_compile(full: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        y = x * 1
        v = y._version
        y.mul_(2)
        return y._version - v, y

    torch.compiler.reset()
    assert torch.compile(f, backend="tj", fullgraph=full)(plain())[0] == 1
