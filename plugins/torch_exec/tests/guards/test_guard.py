"""Guards of each kind hold until their fact changes, and then say which of them fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tj_torch.guards.ambient import guard_modes
from tj_torch.guards.branches import branch_on_state
from tj_torch.guards.flags import guard_flags
from tj_torch.guards.guard import Guards
from tj_torch.guards.members import Absent, Lookup, guard_members, guard_methods
from tj_torch.guards.modules import forwards, guard_global_hooks
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

FLAG = "torch.backends.cuda.flash_sdp_enabled"

Change = contextlib.AbstractContextManager[Any]


class Own(torch.Tensor):
    def double(self) -> Any:
        return self * 2


class Layer(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


def members(guards: Guards, patch: pytest.MonkeyPatch) -> Callable[[], Change]:
    guard_members(guards, [Lookup(Own, "double", Own.double), Lookup(Own, "triple", Absent)])
    return lambda: setting(patch, Own, "triple", 3)


def methods(guards: Guards, patch: pytest.MonkeyPatch) -> Callable[[], Change]:
    guard_methods(guards, [Own])
    return lambda: setting(patch, Own, "double", lambda self: self)


def modules(guards: Guards, patch: pytest.MonkeyPatch) -> Callable[[], Change]:
    guard_members(guards, forwards([nn.ReLU, Layer]))
    return lambda: setting(patch, Layer, "forward", lambda self, x: x + 1)


def hooks(guards: Guards, patch: pytest.MonkeyPatch) -> Callable[[], Change]:
    guard_global_hooks(guards)

    @contextlib.contextmanager
    def change() -> Iterator[None]:
        handle = nn.modules.module.register_module_forward_pre_hook(lambda module, args: None)
        yield
        handle.remove()

    return change


def flags(guards: Guards, patch: pytest.MonkeyPatch) -> Callable[[], Change]:
    guard_flags(guards, [FLAG])
    return lambda: nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH)


def modes(guards: Guards, patch: pytest.MonkeyPatch) -> Callable[[], Change]:
    guard_modes(guards)
    return lambda: FlopCounterMode(display=False)


@contextlib.contextmanager
def setting(patch: pytest.MonkeyPatch, owner: Any, name: str, value: Any) -> Iterator[None]:
    with patch.context() as inside:
        inside.setattr(owner, name, value, raising=False)
        yield


KINDS = {
    members: "Own has no triple",
    methods: "Own.double is unchanged",
    modules: "Layer.forward is unchanged",
    hooks: "torch.nn.modules.module._global_forward_pre_hooks is unchanged",
    flags: f"{FLAG}() == True",
    modes: None,  # not printed
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_guards_fail_where_their_fact_has_changed(
    kind: Callable[..., Callable[[], Change]], monkeypatch: pytest.MonkeyPatch
) -> None:
    guards, text = Guards(), KINDS[kind]
    change = kind(guards, monkeypatch)
    check = guards.check()
    assert check is not None
    assert (check(), guards.failed()) == (True, None)
    assert text is None or text in guards.texts()
    with change():
        assert not check()
        assert guards.failed() == (text or guards.terms()[0])
    assert (check(), guards.failed()) == (True, None)


def test_a_deleted_member_counts_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    guards = Guards()
    guard_members(guards, [Lookup(Own, "double", Own.double)])
    check = guards.check()
    assert check is not None
    assert check()
    monkeypatch.delattr(Own, "double")
    assert not check()
    assert guards.failed() == "Own.double is unchanged"


def test_the_last_guard_is_asked_of_the_arguments_if_all_others_hold() -> None:
    asked: list[int] = []
    guards = Guards(["a", "b"])
    guards.add("a > 0", "b > 0", text="both are positive")
    guards.add("a > 0", text="said before")
    check = guards.check(lambda a, b: asked.append(a + b) or a < b)
    assert check is not None
    assert [check(1, 2), check(2, 1), check(0, 5), check(1, 0)] == [True, False, False, False]
    assert asked == [3, 3]
    assert guards.texts() == ("both are positive",)
    assert [guards.failed(1, 2), guards.failed(0, 5)] == [None, "a > 0"]
    assert guards.failed(1, 0) == "both are positive"


def test_without_guards_nothing_is_asked() -> None:
    guards, last = Guards(), lambda: True
    assert (guards.terms(), guards.check(), guards.failed()) == ([], None, None)
    assert guards.check(last) is last
    assert branch_on_state(last, None, print) is last
