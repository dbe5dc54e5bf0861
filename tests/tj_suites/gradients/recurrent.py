"""A network with a recurrent layer, and its training."""

from __future__ import annotations

import copy
from typing import Any

import tj_core as tj
import torch
from tj_conformance.oracle.compare import assert_equal
from torch import nn

KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


class Network(nn.Module):
    """A recurrent layer between two others; it may begin with a state."""

    def __init__(self, kind: str, options: dict[str, Any], *, state: bool = False) -> None:
        super().__init__()
        dtype = options.get("dtype", torch.float32)
        self.before = nn.Linear(8, 8, dtype=dtype)
        self.recurrent = KINDS[kind](8, 6, **options)
        width = options.get("proj_size", 6) * (2 if self.recurrent.bidirectional else 1)
        self.after = nn.Linear(width, 3, dtype=dtype)
        self.state = state

    def forward(self, x: torch.Tensor) -> Any:
        x = self.before(x).relu()
        first = self.first(x) if self.state else ()
        y, last = self.recurrent(x, *first)
        return self.after(y).tanh(), last

    def first(self, x: torch.Tensor) -> tuple[Any]:
        layer = self.recurrent
        rows = () if x.dim() == 2 else (x.shape[0 if layer.batch_first else 1],)
        shape = (layer.num_layers * (2 if layer.bidirectional else 1), *rows, layer.hidden_size)
        h = x.new_ones(shape)
        return ((h, h * 2),) if isinstance(layer, nn.LSTM) else (h,)


def steps(model: nn.Module, run: Any, *args: Any) -> list[Any]:
    """Results of two training steps, and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        out = run(*args)
        leaves = torch.utils._pytree.tree_leaves(out)
        sum(t.square().sum() for t in leaves if t.is_floating_point()).backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append((out, {n: p.detach().clone() for n, p in model.named_parameters()}))
    return found


def trained_equally(model: nn.Module, *args: Any) -> Any:
    twin = copy.deepcopy(model)
    jitted = tj.jit(twin)
    assert_equal(steps(twin, jitted, *args), steps(model, model, *args))
    assert (tj.stats(jitted).entries, tj.stats(jitted).fallbacks) == (1, ())
    return jitted
