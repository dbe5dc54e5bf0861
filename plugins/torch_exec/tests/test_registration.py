"""Names of PyTorch's operations in tables of plugins: unknown names are reported."""

from __future__ import annotations

from typing import Any

import pytest
import tj_core as tj
from tj_core.extend import Claim, Executor, PluginError, RuleTable
from tj_core.testing.plugins import plugin_object

WRONG = {
    "exp": "'exp' names no operation. Did you mean 'torch.exp'?",
    "troch.exp": "there is no namespace 'troch' for 'troch.exp'. Did you mean 'torch'?",
    "torch.expp": "there is no operation 'torch.expp'. Did you mean 'torch.exp'?",
    "torch.nn.functional.gelo": (
        "there is no operation 'torch.nn.functional.gelo'. Did you mean 'torch.nn.functional.gelu'?"
    ),
    "torch.Tensor.contigous": (
        "there is no operation 'torch.Tensor.contigous'. Did you mean 'torch.Tensor.contiguous'?"
    ),
    "aten.bm.default": "there is no operation 'aten.bm.default'. Did you mean 'aten.bmm'?",
    "aten.add.Tenser": "there is no operation 'aten.add.Tenser'. Did you mean 'aten.add.Tensor'?",
    "torch.expp.backward": (
        "there is no operation 'torch.expp.backward'. Did you mean 'torch.exp'?"
    ),
}
RIGHT = (
    "torch.exp", "torch.*", "*", "aten.addmm.default", "torch.nn.functional.layer_norm.backward",
    "torch.ops.acme.not_yet_registered", "torch.Tensor.add_.functional", "math.floor",
)  # fmt: skip


def session(*keys: str) -> tj.Session:
    claims: RuleTable[Any] = RuleTable("claim")
    for key in keys:
        claims.set(key, Claim(print))
    acme = plugin_object("acme", tj_executors=(Executor("acme", claims),))
    return tj.Session(plugins=[acme, "torch"], overrides={"strict": True})


@pytest.mark.parametrize("key", WRONG)
def test_names_that_no_operation_has(key: str) -> None:
    with pytest.raises(PluginError) as error:
        session(key)
    assert error.value.message == f"executor 'acme' of plugin 'acme' (inline): {WRONG[key]}"


def test_names_that_operations_have() -> None:
    assert len(session(*RIGHT).executors[0].claims) == len(RIGHT)
