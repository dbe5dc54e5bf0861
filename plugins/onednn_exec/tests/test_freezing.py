"""Inference with frozen parameters: packed weights, and errors after a write to them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_onednn import choice
from tj_onednn.packing import Weights
from tj_onednn.timing import Times

PACKED = "onednn_packed"


class Net(torch.nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(16, 32, dtype=dtype)
        self.second = torch.nn.Linear(32, 8, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x)))


@pytest.fixture
def freezing() -> Callable[..., Any]:
    """``tj.jit`` with frozen parameters, in which all that can be packed is."""

    def jit(f: Any, *before: str, freeze: bool = True, **options: Any) -> Any:
        overrides = {"check": 2, "strict": True, "freeze": freeze}
        overrides["onednn"] = {"choose": "always"} | options
        plugins = ("onednn", *before, "autograd", "torch")
        return tj.jit(f, session=tj.Session(plugins, overrides=overrides), dynamic=False)

    return jit


def packed(jitted: Any) -> list[str]:
    return [c.symbol.path for c in tj.last_trace(jitted).calls if c.symbol.namespace == PACKED]


def same(jitted: Any, model: Any, *args: Any) -> None:
    with torch.no_grad():
        got, expected = jitted(*args), model(*args)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()


BFLOAT16 = pytest.param(torch.bfloat16, marks=pytest.mark.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
@pytest.mark.parametrize("before", [(), ("inductor",)])
def test_layers_run_with_packed_weights(dtype: Any, before: Any, freezing: Any) -> None:
    model = Net(dtype)
    jitted = freezing(model, *before)
    for rows in (4, 4, 1):
        same(jitted, model, torch.randn(2, rows, 16, dtype=dtype))
    assert packed(jitted) == ["torch.nn.functional.linear"] * 2
    jitted = freezing(model, *before, freeze=False)
    same(jitted, model, torch.randn(4, 16, dtype=dtype))
    assert packed(jitted) == []


CONVOLUTIONS = {
    "strided": {"stride": 2, "padding": 1},
    "dilated": {"dilation": 2, "padding": (2, 1)},
    "depthwise": {"groups": 8},
}


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_convolutions_of_images_by_channels(kind: str, freezing: Any) -> None:
    """Packed, they return channels last; other calls are PyTorch's."""
    model = torch.nn.Conv2d(8, 16, 3, **CONVOLUTIONS[kind])
    x = torch.randn(2, 8, 9, 9)
    jitted = freezing(model)
    same(jitted, model, x.to(memory_format=torch.channels_last))
    assert packed(jitted) == ["torch.conv2d"]
    same(jitted, model, x)
    assert packed(jitted) == []
    assert "another layout" in str(tj.explain(jitted))


DECLINED = {
    "its padding is computed": (torch.nn.Conv2d(8, 16, 3, padding="same"), (2, 8, 9, 9)),
    "it is no batch of images": (torch.nn.Conv2d(8, 16, 3), (8, 9, 9)),
    "is not a frozen input": (torch.nn.utils.parametrizations.weight_norm(Net().first), (4, 16)),
}


@pytest.mark.parametrize("said", DECLINED)
def test_other_layers_are_declined_with_a_reason(said: str, freezing: Any) -> None:
    model, sizes = DECLINED[said]
    jitted, x = freezing(model), torch.randn(sizes)
    if len(sizes) == 4:
        x = x.to(memory_format=torch.channels_last)
    same(jitted, model, x)
    assert packed(jitted) == []
    assert said in str(tj.explain(jitted))


def test_arguments_by_keyword(freezing: Any) -> None:
    class Model(torch.nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.conv2d(x, self.weight, padding=1, bias=self.bias)

    model = Model(8, 8, 3)
    jitted = freezing(model)
    same(jitted, model, torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last))
    assert packed(jitted) == ["torch.conv2d"]


RECURRENT: dict[str, dict[str, Any]] = {
    "one layer": {},
    "two layers": {"num_layers": 2},
    "both ways": {"bidirectional": True, "num_layers": 2},
    "batch first": {"batch_first": True},
    "no biases": {"bias": False},
}


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers(kind: str, freezing: Any) -> None:
    """They pack both weights, once for each form of the input, and again after a write."""
    model = torch.nn.LSTM(16, 32, **RECURRENT[kind])
    jitted = freezing(lambda x, *state: model(x, *state)[0])
    eager = lambda x, *state: model(x, *state)[0]  # noqa: E731
    layers = model.num_layers * (1 + model.bidirectional)
    for sizes in ((5, 3), (5, 3), (4, 2)):
        same(jitted, eager, torch.randn(*sizes, 16))
        assert packed(jitted) == ["aten.mkldnn_rnn_layer.default"] * layers
    state = torch.randn(layers, 3, 32)
    given = torch.randn(3, 5, 16) if model.batch_first else torch.randn(5, 3, 16)
    same(jitted, eager, given, (state, state * 2))
    model.load_state_dict({k: v * 1.5 for k, v in model.state_dict().items()})
    same(jitted, eager, given, (state, state * 2))


def test_a_layer_of_state_and_input_in_one_weight(freezing: Any) -> None:
    model = torch.nn.LSTM(16, 16)
    model.weight_hh_l0 = model.weight_ih_l0
    jitted = freezing(lambda x: model(x)[0])
    for _ in range(2):
        same(jitted, lambda x: model(x)[0], torch.randn(5, 3, 16))
    assert packed(jitted) == ["aten.mkldnn_rnn_layer.default"]


def test_views_of_parameters_take_no_gradients(freezing: Any) -> None:
    """They require one, also where gradients are off."""

    class Tied(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) @ self.weight.t()[:, :4]

    model = Tied(8, 8)
    jitted = freezing(model)
    same(jitted, model, torch.randn(4, 8))
    assert packed(jitted) == ["torch.nn.functional.linear"]


def test_weights_are_loaded_while_the_program_serves(freezing: Any) -> None:
    model, x = Net(), torch.randn(4, 16)
    jitted = freezing(model)
    same(jitted, model, x)
    for factor in (2, 0.5):
        jitted.load_state_dict({k: v * factor for k, v in model.state_dict().items()})
        for _ in range(2):
            same(jitted, model, x)
        same(jitted, model, torch.randn(3, 16))  # packed for another number of rows
    assert "torch.nn.functional.linear" in packed(jitted)
    entries = tj.stats(jitted).entries
    jitted.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}, assign=True)
    same(jitted, model, x)
    assert tj.stats(jitted).entries == entries, "nothing is compiled again"


def test_a_write_while_another_thread_packs(freezing: Any) -> None:
    from tj_onednn.packing import Frozen

    weight = torch.nn.Parameter(torch.ones(4, 4))
    frozen = Frozen(weight.detach(), weight._version)

    def overtaken(w: torch.Tensor) -> torch.Tensor:
        found = w.clone()
        with torch.no_grad():
            weight.add_(1)
        assert torch.equal(frozen.pack("key", torch.clone), torch.full((4, 4), 2.0))
        return found

    frozen.pack("key", overtaken)
    assert torch.equal(frozen.pack("key", torch.clone), torch.full((4, 4), 2.0))


def by_a_fused_optimizer(model: Net) -> None:
    model(torch.randn(4, 16)).sum().backward()
    torch.optim.Adam(model.parameters(), fused=True).step()


def through_data(model: Net) -> None:
    model.first.weight.data.mul_(2)


def through_numpy(model: Net) -> None:
    model.first.weight.detach().numpy()[:] = 1


@pytest.mark.parametrize("write", [by_a_fused_optimizer, through_data, through_numpy])
def test_writes_that_nobody_counts_are_seen_in_the_values(write: Any, freezing: Any) -> None:
    model, x = Net(), torch.randn(4, 16)
    with torch.no_grad():
        model.first.weight[0, 0] = float("nan")
    jitted = freezing(model)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(jitted(x), model(x), equal_nan=True)
    write(model)
    with torch.no_grad(), pytest.raises(tj.TjError, match="does not count"):
        jitted(x)


def test_it_is_an_argument_of_jit_and_an_option() -> None:
    model, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    plugins = ["onednn", "autograd", "torch"]
    always = {"choose": "always"}
    given = ({"freeze": True, "onednn": always}, {"onednn": {"freeze": True, **always}})
    for options in given:
        jitted = tj.jit(model, plugins=plugins, **options)
        same(jitted, model, x)
        assert packed(jitted) == ["torch.nn.functional.linear"]


def test_a_bias_is_not_packed(freezing: Any) -> None:
    model, x = Net(), torch.randn(4, 16)
    jitted = freezing(model)
    same(jitted, model, x)
    with torch.no_grad():
        model.first.bias.add_(1)
    same(jitted, model, x)


def replaced(model: Net) -> None:
    model.first.weight = torch.nn.Parameter(torch.randn(32, 16))


def given_other_memory(model: Net) -> None:
    model.first.weight.data = torch.randn(32, 16)


@pytest.mark.parametrize("change", [replaced, given_other_memory])
def test_other_memory_is_another_weight(change: Any, freezing: Any) -> None:
    model, x = Net(), torch.randn(4, 16)
    jitted = freezing(model)
    same(jitted, model, x)
    change(model)
    gc.collect()
    for _ in range(3):
        same(jitted, model, x)


def test_arguments_are_no_parameters(freezing: Any) -> None:
    """They may be written: freezing does not cover them."""
    jitted = freezing(F.linear)
    x, w = torch.randn(4, 16), torch.randn(8, 16)
    for _ in range(3):
        same(jitted, F.linear, x, w)
        w.mul_(2)


def test_training_is_as_without(freezing: Any) -> None:
    model, x = Net(), torch.randn(4, 16)
    jitted = freezing(model)
    for _ in range(2):
        jitted(x).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad)
        torch.testing.assert_close(jitted(x), model(x))
    assert packed(jitted) == []


def test_parameters_that_nobody_counts_writes_of(freezing: Any) -> None:
    with torch.inference_mode():
        model = Net()
    jitted, x = freezing(model), torch.randn(4, 16)
    same(jitted, model, x)
    with torch.inference_mode():
        model.first.weight.mul_(2)
    same(jitted, model, x)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_in_inference_mode(mode: Any, freezing: Any) -> None:
    model, x = Net(), torch.randn(4, 16)
    jitted = freezing(model)
    with mode():
        for _ in range(2):
            torch.testing.assert_close(jitted(x), model(x))
    if mode is torch.no_grad:
        assert len(packed(jitted)) == 2


def test_a_program_that_is_gone_holds_nothing(freezing: Any) -> None:
    model = Net()
    memory = weakref.ref(model.first.weight)
    jitted = freezing(model)
    same(jitted, model, torch.randn(4, 16))
    del jitted, model
    torch.compiler.reset()
    gc.collect()
    assert memory() is None


def test_weights_are_held_while_somebody_does() -> None:
    weights, w = Weights(), torch.randn(3, 4)
    first, second = weights.hold([w]), weights.hold([w])
    assert first[0] is second[0]
    assert weights.find(w) is first[0]
    assert weights.find(w.t()) is None, "the same memory, read otherwise"
    del first
    assert weights.find(w) is second[0]
    del second
    gc.collect()
    assert weights.find(w) is None


@pytest.mark.parametrize(
    ("plain", "with_packed", "who"),
    [(1.2, 0.8, PACKED), (0.7, 0.8, "onednn"), (0.7, 0.68, "onednn"), (0.7, 0.5, PACKED)],
)
def test_packed_weights_must_beat_the_best_of_the_others(
    plain: float, with_packed: float, who: str, freezing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([plain, with_packed])
    monkeypatch.setattr(choice, "compare", lambda *_: Times(0.001, 0.001 * next(times)))
    model = torch.nn.Linear(64, 64)
    jitted = freezing(model, choose="measure")
    same(jitted, model, torch.randn(32, 64))
    assert [c.symbol.namespace for c in tj.last_trace(jitted).calls][-1] == who


@pytest.mark.bfloat16
def test_bfloat16_for_float32_packs_too(freezing: Any) -> None:
    model, x = Net(), torch.randn(4, 16)
    jitted = freezing(model, precision="bfloat16")
    with torch.no_grad():
        got, expected = jitted(x), model(x)
    assert packed(jitted)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)
    assert not torch.allclose(got, expected, rtol=1e-4, atol=1e-4)
