"""Entries: aliasing of arguments, the death of guarded objects, and the limit of entries."""

from __future__ import annotations

import gc
import inspect
import warnings
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_retraces

check = assert_retraces

X = torch.arange(6.0).reshape(2, 3)


def test_same_tensor_twice_then_two() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    g = tj.jit(f)
    for same in (True, False, True):
        a, b = X.clone(), X.clone()
        expected = f(a, a) if same else f(a, b)
        c, d = X.clone(), X.clone()
        torch.testing.assert_close(g(c, c) if same else g(c, d), expected)
        torch.testing.assert_close((c, d), (a, b))


def test_overlapping_views() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    g = tj.jit(f)
    for slices in ((slice(0, 3), slice(3, 6)), (slice(0, 3), slice(1, 4)), (slice(0, 3),) * 2):
        base, other = torch.arange(6.0), torch.arange(6.0)
        expected = f(base[slices[0]], base[slices[1]])
        torch.testing.assert_close(g(other[slices[0]], other[slices[1]]), expected)
        torch.testing.assert_close(other, base)


HELPER: Any = None


@pytest.mark.slow
def test_dead_functions_never_answer_for_new_ones() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return HELPER(x)

    g = tj.jit(f)
    for i in range(30):
        scope: dict[str, Any] = {}
        exec(f"def helper(x): return x + {i + 1000}", scope)
        globals()["HELPER"] = scope["helper"]
        del scope
        assert torch.equal(g(X), X + i + 1000)
        globals()["HELPER"] = None
        gc.collect()


def forget_classes() -> None:
    """Let classes die that `inspect` remembers, from Python 3.12 on, for Dynamo's lookups."""
    remembered = getattr(inspect, "_shadowed_dict_from_mro_tuple", None)
    if remembered is not None:
        remembered.cache_clear()


@pytest.mark.slow
def test_dead_classes_end_their_entries() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return HELPER.apply(x)

    g = tj.jit(f)
    for i in range(30):
        scope: dict[str, Any] = {}
        exec(f"class Helper:\n    gain = {i}\n    def apply(s, x): return x + s.gain", scope)
        globals()["HELPER"] = scope["Helper"]()
        del scope
        assert torch.equal(g(X), X + i)
        globals()["HELPER"] = None
        forget_classes()
        gc.collect()
    assert tj.stats(g).entries + tj.stats(g).invalidated == 30
    assert tj.stats(g).invalidated >= 29


def test_entries_are_limited_and_eviction_is_loud() -> None:
    def f(x: torch.Tensor, k: str) -> torch.Tensor:
        return x * len(k)

    g = tj.jit(f, max_entries=2)
    for k in ("a", "bb"):
        check(f, g, X, k, retraces=True)
    with pytest.warns(tj.TjWarning, match="more than 2 compiled entries"):
        check(f, g, X, "ccc", retraces=True)
    assert tj.stats(g).entries == 2
    assert tj.stats(g).evicted == 1


@pytest.mark.parametrize("frontend", ["dynamo", "fx"])
def test_the_entry_that_is_unused_for_longest_makes_room(frontend: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + x.shape[0]

    program: Any = torch.fx.symbolic_trace(f) if frontend == "fx" else f
    g = tj.jit(program, frontend=frontend, max_entries=3, dynamic=False)

    def call(n: int) -> bool:
        """A call with ``n`` numbers; True if a program was there."""
        misses = tj.stats(g).misses
        x = torch.arange(float(n))
        torch.testing.assert_close(g(x), f(x))
        return tj.stats(g).misses == misses

    assert [call(n) for n in (2, 3, 4, 3, 2)] == [False, False, False, True, True]
    with pytest.warns(tj.TjWarning, match="gone unused for longest"):
        assert not call(5)  # in place of 4
    assert [call(n) for n in (2, 3, 5, 2)] == [True] * 4
    with pytest.warns(tj.TjWarning):
        assert not call(4)  # in place of 2, whose first call since is the longest ago
    assert [call(n) for n in (5, 3, 4)] == [True] * 3
    if frontend == "dynamo":
        rows = inspect.getclosurevars(g).nonlocals["rows"]
        assert [run.__name__ for _, run in rows] == [rows[0][1].__name__] * 3 != ["noted"] * 3, (
            "each entry has been called since, and no call is noted any more"
        )
    assert tj.stats(g).evicted == 2


def test_two_jits_of_one_function_do_not_share_what_is_learned() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    first, second = tj.jit(f), tj.jit(f)
    check(f, first, torch.randn(2), retraces=True)
    check(f, second, torch.randn(3), retraces=True)
    assert "s" not in str(tj.last_trace(second).inputs[0].shape)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "after a break"])
def test_guards_are_not_timed(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo would flush the caches for it: half of the time of a small compile."""

    def timed(*args: Any) -> float:
        raise AssertionError("a guard is timed")

    monkeypatch.setattr("torch._dynamo.guards.profile_guard_manager", timed)

    def program(x: torch.Tensor) -> torch.Tensor:
        if not whole:
            torch._dynamo.graph_break()
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        assert torch.equal(tj.jit(program)(torch.ones(2)), torch.full((2,), 2.0))
    assert torch._dynamo.guards.profile_guard_manager is timed
