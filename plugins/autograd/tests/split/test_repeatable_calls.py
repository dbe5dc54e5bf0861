"""Ordered calls that run again where a rule says that they may, on made-up programs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tj_autograd.joint.repeatable import ITSELF, WITH_ARGUMENT, together
from tj_autograd.split.partition import Forward, Terms
from tj_core.extend import Alias, BoundSymbol, Effects, Symbol, TagError, TagSet, TensorProxy

RULES = {"x.start": ITSELF, "x.wait": WITH_ARGUMENT}


def value(name: str, size: int, *tags: str) -> TensorProxy:
    return TensorProxy(name, (size,), (1,), tags=TagSet(tags))


SHARD = value("shard", 4)


def repeats(call: BoundSymbol) -> str | None:
    return RULES.get(call.symbol.qualname)


def call(
    name: str, argument: TensorProxy, made: TensorProxy, tags: Iterable[str] = ()
) -> BoundSymbol:
    effects = {"view": Effects(aliases=(Alias(0, "arg"),)), "compute": Effects()}
    ordered = Effects(ordered=("order",))
    return BoundSymbol(
        Symbol("x", name), (argument,), outputs=made, effects=effects.get(name, ordered),
        tags=TagSet(tags),
    )  # fmt: skip


def gather(
    *tags: str, start: str = "start", on_call: Iterable[str] = ()
) -> tuple[BoundSymbol, ...]:
    """A gather of ``shard``, a wait, and a chain of views; what is gathered has ``tags``."""
    going, full = value("going", 16), value("full", 16, *tags)
    views = [value(f"view{i}", 16) for i in range(12)]
    chain = zip((full, *views), views, strict=False)
    return (
        call(start, SHARD, going),
        call("wait", going, full, on_call),
        *(call("view", a, b) for a, b in chain),
    )


def saved(
    calls: tuple[BoundSymbol, ...], needed: str, depth: int | None = None, **terms: frozenset[str]
) -> set[str]:
    forward = Forward((SHARD,), calls, frozenset([needed]), repeats=repeats)
    return set(forward.saved(lambda c: c.symbol.name == "view", depth, terms=Terms(**terms)))


@pytest.mark.parametrize("needed", ["full", "view0", "view11"])
@pytest.mark.parametrize("depth", [None, 0])
def test_the_tag_on_what_is_gathered_is_for_the_start_too(needed: str, depth: int | None) -> None:
    """Views would keep all of what is gathered, so the shard is saved, however far it is."""
    assert saved(gather("RECOMPUTE"), needed, depth) == {"shard"}


def test_without_a_tag_what_was_waited_for_is_saved() -> None:
    assert saved(gather(), "full") == {"full"}
    assert saved(gather("SAVE"), "full") == {"full"}
    assert saved(gather(on_call=["SAVE"]), "full") == {"full"}


def test_what_is_still_being_written_is_never_saved() -> None:
    """A budget that allows the wait alone to run again allows the start with it."""
    for free in ("going", "full"):
        assert saved(gather(), "full", free=frozenset([free])) == {"shard"}


def test_calls_without_a_rule_do_not_run_again() -> None:
    """The wait for another start does not either: its view is saved, or the tag is an error."""
    calls = gather("RECOMPUTE", start="reduce")
    assert together(calls, repeats) == {}
    assert saved(calls, "view0") == {"view0"}
    with pytest.raises(TagError, match="must not be saved"):
        saved(calls, "full")


def test_a_saved_view_of_what_runs_again_stays_saved() -> None:
    made = gather("RECOMPUTE")
    asked = made[2].replace(tags=TagSet(["SAVE"]))
    assert saved((*made[:2], asked), "view0") == {"view0"}
