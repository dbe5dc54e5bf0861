"""Training with graphs forward and backward: gradients equal to eager's to the bit."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from tj_conformance.models import MODELS, step
from tj_conformance.sampling import FULL
from tj_nvfuser.testing.plugin import ReferencePlugin
from torch import nn


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2))


def batches(count: int) -> list[torch.Tensor]:
    seeds = (torch.Generator("cpu").manual_seed(i) for i in range(count))
    made = (torch.rand(2, 3, generator=seed, device="cpu") for seed in seeds)
    return [x.to(torch.get_default_device()) for x in made]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def equal(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_an_optimizer_steps(graphed: Any) -> None:
    session = graphed(check=2)
    mine, eager = network(), network()
    f = session.jit(mine)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (mine, eager)]
    for x in batches(6):
        for run in (f, eager):
            run(x).square().sum().backward()
        equal(gradients(mine), gradients(eager))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    equal([*mine.parameters()], [*eager.parameters()])
    assert session.recorder.counts == (2, 2, 10), "one graph forward and one backward"


def test_gradients_add_up_over_several_backwards(session: Any) -> None:
    mine, eager = network(), network()
    f, losses, expected = session.jit(mine), [], []
    for x in batches(6):
        for run, kept in ((f, losses), (eager, expected)):
            kept.append(run(x).square().sum())
            kept[-1].backward()
    equal(gradients(mine), gradients(eager))
    equal(losses, expected)


def test_backwards_in_another_order_and_twice(session: Any) -> None:
    mine, eager = network(), network()
    f = session.jit(mine)
    for _ in range(3):
        for run in (f, eager):
            outputs = [run(x).square().sum() for x in batches(3)]
            for y in outputs:
                y.backward(retain_graph=True)
            for y in reversed(outputs):
                y.backward()
        equal(gradients(mine), gradients(eager))
    assert session.recorder.captures == 2


def test_backward_on_another_thread(session: Any) -> None:
    mine, eager = network(), network()
    f = session.jit(mine)
    for x in batches(4):
        eager(x).sum().backward()
        y = f(x).sum()
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join()
    equal(gradients(mine), gradients(eager))
    assert session.recorder.captures == 2


def test_random_numbers_are_drawn_between_graphs(session: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 2), nn.Tanh())
    f = session.jit(model)
    for i, x in enumerate(batches(5)):
        got = []
        for run in (f, model):
            model.zero_grad()
            torch.manual_seed(i)
            run(x).sum().backward()
            got.append(gradients(model))
        equal(*got)
    runs = [c for c in tj.last_trace(f).calls if c.executor == "cudagraph"]
    assert len(runs) == 2
    assert session.recorder.replays > 0


class GPT(nn.Module):
    """A block of a GPT, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(16, 8), nn.Embedding(6, 8)
        self.first, self.second, self.last = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention, self.project = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, words: torch.Tensor) -> Any:
        """Logits and loss."""
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        shape = (*words.shape, 2, 4)
        q, k, v = (y.view(shape).transpose(1, 2) for y in self.attention(self.first(x)).split(8, 2))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(found.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.second(x))))
        logits = self.last(x) @ self.words.weight.t()
        return logits, F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


@pytest.mark.slow
def test_a_gpt_trains_and_infers(session: Any) -> None:
    torch.manual_seed(0)
    model = GPT()
    f, texts = session.jit(model), [torch.randint(0, 16, (2, 6)) for _ in range(4)]
    for words in texts:
        found = []
        for run in (f, model):
            model.zero_grad()
            logits, loss = run(words)
            loss.backward()
            found.append((logits, loss, gradients(model)))
        equal(*found)
    assert session.recorder.counts == (3, 3, 9), "logits and loss have a backward each"
    with torch.no_grad():
        results = [f(words) for words in texts]
        equal(results, [model(words) for words in texts])
    assert session.recorder.counts == (4, 4, 12)


@pytest.mark.skipif(not FULL, reason="TJ_FULL=1 trains the models of transformers, too")
@pytest.mark.parametrize("name", MODELS)
def test_models_train_and_infer(name: str, graphed: Any) -> None:
    session = graphed(check=0)
    model = MODELS[name].build().train()
    batch = MODELS[name].batch()
    f = session.jit(model)
    for seed in range(4):
        expected, got = step(model, model, batch, seed), step(model, f, batch, seed)
        equal(got["grads"], expected["grads"])
    assert tj.stats(f).fallbacks == ()
    assert tj.explain(f).declined == ()
    trained = session.recorder.replays
    assert trained > 0
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            got, expected = f(**batch), model(**batch)
            for key, value in expected.items():
                if isinstance(value, torch.Tensor):
                    equal(got[key], value)
    assert session.recorder.replays > trained


@pytest.mark.usefixtures("recorded")
def test_regions_of_an_executor_that_fuses_stand_in_segments(
    graphed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TJ_DISABLE", raising=False)
    session = graphed(ReferencePlugin())
    weight = torch.rand(3, requires_grad=True)

    def program(x: torch.Tensor) -> torch.Tensor:
        return ((x * weight + 1).tanh() * 2).sum(0) @ x.t()

    f = session.jit(program)
    for x in batches(4):
        expected = torch.autograd.grad(program(x).sum(), weight)
        torch.testing.assert_close(torch.autograd.grad(f(x).sum(), weight), expected)
    (run,) = tj.last_trace(f).calls
    assert "nvfuser" in {call.executor for call in run.subprograms[0].program.calls}
    assert session.recorder.replays == 6
