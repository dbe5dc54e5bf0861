"""Arguments that share storage, or have offsets in it, which metadata and memo keys lack.

Expansions have neither storage offsets nor overlap, and must not depend on them: programs run in
one session, with bodies inlined, on arguments that differ in nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_core.extend import Claim, Executor, RuleTable, Session, hookimpl
from tj_torch.ops.errors import CannotExpand
from tj_torch.ops.facts.denials import Denied, rules
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

CLAIMED = (
    torch.ops.aten.mul.Tensor,
    torch.ops.aten.add.Tensor,
    torch.ops.aten.sin.default,
    torch.ops.aten.as_strided.default,
    torch.ops.aten._fft_r2c.default,
    torch.ops.aten.clone.default,
)


class Low:
    """Executor of ATen operators, for which calls are inlined as their bodies."""

    tj_name = "low"

    @hookimpl
    def tj_executors(self):
        claims: RuleTable[Any] = RuleTable("claim")
        for op in CLAIMED:
            claims.set(str(op), Claim(op))
        return (Executor("low", claims),)


@pytest.fixture(scope="module")
def session() -> Session:
    """Session whose memo the tests share."""
    return Session(plugins=[Low(), "torch"])


def base() -> torch.Tensor:
    return torch.arange(20.0) + 1


def outcome(program: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> Any:
    """Results and the arguments' whole storage after the call, or the type of the error."""
    whole, *args = make()
    try:
        result = program(*args)
    except Exception as error:
        return type(error), whole
    return result, whole


def check(session: Session, program: Callable[..., Any], makes: Any) -> Any:
    """Run one jitted program on all arguments in turn, each twice, against eager."""
    jitted = tj.jit(program, session=session)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)  # a program that raises is not captured
        for make in [*makes, *makes]:
            got, expected = outcome(jitted, make), outcome(program, make)
            if isinstance(expected[0], type):
                assert got[0] is expected[0], program
                torch.testing.assert_close(got[1], expected[1], rtol=0, atol=0)
            else:
                torch.testing.assert_close(got, expected, rtol=0, atol=0)
    return jitted


def sliced(offset: int) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        whole = base()
        return whole, whole[offset : offset + 8]

    return make


OFFSETS = {
    "as_strided": lambda x: torch.as_strided(x, (2, 2), (2, 1)).sin(),
    "as_strided absolute": lambda x: torch.as_strided(x, (2, 2), (2, 1), 1).sin(),
    "as_strided of a view": lambda x: x.view(2, 4)[1].as_strided((2,), (2,)) * 2,
    "as_strided_scatter": lambda x: torch.as_strided_scatter(x, torch.zeros(2), (2,), (2,)) * 2,
    "as_strided_copy": lambda x: torch.as_strided_copy(x, (2, 2), (2, 1)) * 2,
    "as_strided_": lambda x: x.as_strided_((2, 2), (2, 1)) * 2,
    "a written part": lambda x: x.as_strided((2,), (3,)).mul_(2) + 1,
    "stft": lambda x: torch.stft(x, 4, 2, center=False, return_complex=True, window=torch.ones(4)),
    "unfold": lambda x: x.unfold(0, 4, 2) * 2,
    "storage_offset": lambda x: x * x.storage_offset(),
    "_reshape_alias": lambda x: torch.ops.aten._reshape_alias(x, (2, 4), (4, 1)) * 2,
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", OFFSETS)
def test_storage_offsets(session: Session, name: str) -> None:
    check(session, OFFSETS[name], [sliced(offset) for offset in (0, 3, 4, 1)])


def test_pytorch_may_look_for_symbols_in_an_offset() -> None:
    """`Shard` does before it takes a part of a tensor, and nothing depends on the number."""

    def asks(x: torch.Tensor) -> bool:
        return has_free_unbacked_symbols(x)

    def reads(x: torch.Tensor) -> int:
        return x.storage_offset()

    denied, (_, x) = Denied(rules()), sliced(1)()
    with denied.watching(asks, [x]):
        assert not asks(x)
    with pytest.raises(CannotExpand, match="storage_offset"), denied.watching(reads, [x]):
        reads(x)


def pairs() -> Iterator[Callable[[], tuple[Any, ...]]]:
    """Pairs of tensors of eight elements: apart, overlapping either way, and the same."""
    for first, second in ((0, 10), (1, 0), (0, 1), (2, 2)):

        def make(first: int = first, second: int = second) -> tuple[Any, ...]:
            whole = base()
            return whole, whole[first : first + 8], whole[second : second + 8]

        yield make

    def identical() -> tuple[Any, ...]:
        whole = base()
        part = whole[:8]
        return whole, part, part

    yield identical


OVERLAPS = {
    "copy_": lambda x, y: (x.copy_(y), x * 2, y * 2),
    "add_": lambda x, y: (x.add_(y), y * 2),
    "add out": lambda x, y: (torch.add(x, 1, out=y), x * 2),
    "mul out": lambda x, y: (torch.mul(x, y, out=x), y * 2),
    "written then read": lambda x, y: (y * 2, x.mul_(3), y * 2),
    "setitem": lambda x, y: (x.__setitem__(slice(2, 4), y[:2]), y + x),
    "lerp_": lambda x, y: (x.lerp_(y, 0.5), y + 1),
    "foreach": lambda x, y: (torch._foreach_add_([x, y], 1), x * y),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", OVERLAPS)
def test_overlapping_arguments(session: Session, name: str) -> None:
    check(session, OVERLAPS[name], list(pairs()))


INSIDE = {
    "shifted": lambda x: (x[1:].copy_(x[:-1]), x * 2),
    "disjoint": lambda x: (x[4:].copy_(x[:4]), x * 2),
    "shifted back": lambda x: (x[:-1].copy_(x[1:]), x * 2),
    "added into itself": lambda x: (x[1:].add_(x[:-1]), x * 2),
    "out into a part": lambda x: (torch.add(x[:4], 1, out=x[4:]), x * 2),
    "expanded": lambda x: x[:1].expand(4).add_(1),
}


@pytest.mark.parametrize("name", INSIDE)
def test_parts_of_one_argument(session: Session, name: str) -> None:
    """The calls of all these share memo keys; only some overlap."""
    check(session, INSIDE[name], [sliced(0), sliced(5)])


def test_bodies_were_inlined(session: Session) -> None:
    jitted = check(session, OFFSETS["stft"], [sliced(0)])
    assert "low.aten.as_strided" in str(tj.last_trace(jitted))
