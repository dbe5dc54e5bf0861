"""Checkpointed programs that write state outside of the
checkpoint, and write again in its rerun.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from tj_conformance.programs.observations import SeenProgram

__all__ = ["BODIES", "checkpointed_programs"]

BODIES: Mapping[str, str] = MappingProxyType(
    {
        "batch norm": "return self.norm(self.linear(x)).relu()",
        "buffer": "self.total.add_(self.linear(x).detach().sum(0)); return self.linear(x).sin()",
        "buffer that is used": "self.total.add_(1); return self.linear(x).sin() * self.total",
        "view of a buffer": "self.total[:2].mul_(0.5); return self.linear(x).sin()",
        "buffer by copy_": "self.total.copy_(x.detach().mean(0)); return self.linear(x).sin()",
        "attribute": "self.calls += 1; return self.linear(x).sin()",
        "another buffer": "self.total = self.total + 1; return self.linear(x).sin()",
        "list": "self.log.append(len(self.log)); return self.linear(x).sin()",
        "dropout": "return torch.nn.functional.dropout(self.linear(x), 0.5)",
        "nothing": "return self.linear(x).sin().exp()",
        "temporary": "y = self.linear(x).clone(); y.mul_(2); return y.sin()",
    }
)
"""Bodies of a module's checkpointed method."""

_FORWARDS: Mapping[str, str] = MappingProxyType(
    {
        "one": "return checkpoint(self.inner, x * 1, use_reentrant=False).sum()",
        "two": "y = checkpoint(self.inner, x * 1, use_reentrant=False)\n"
        "        return checkpoint(self.inner, y, use_reentrant=False).sum()",
        "nested": "return checkpoint(lambda y: checkpoint(self.inner, y, use_reentrant=False) * 2, "
        "x * 1, use_reentrant=False).sum()",
        "in no_grad": "with torch.no_grad():\n"
        "            y = checkpoint(self.inner, x * 1, use_reentrant=False)\n"
        "        return (y + self.linear(x)).sum()",
        "reentrant": "return checkpoint(self.inner, x * 1, use_reentrant=True).sum()",
    }
)

_HEAD = """\
import torch
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
        self.register_buffer("total", torch.zeros(4))
        self.calls, self.log = 0, []

    def inner(self, x):
        {body}

    def forward(self, x):
        {forward}

program = net = Net().train({training})

def state():
    gradients = [p.grad for p in net.parameters()]
    return gradients, list(net.buffers()), net.calls, list(net.log)
"""


def checkpointed_programs() -> Iterator[SeenProgram]:
    """Each body in each forward, in training and evaluation; three steps."""
    for (name, body), (how, forward), training in itertools.product(
        BODIES.items(), _FORWARDS.items(), (True, False)
    ):
        text = _HEAD.replace("{body}", body).replace("{forward}", forward)
        calls = tuple(f"(torch.rand(3, 4).add({k}).requires_grad_(),)" for k in range(3))
        mode = "training" if training else "evaluation"
        made = text.replace("{training}", str(training))
        yield SeenProgram(f"{name}, {how}, {mode}", made, calls)
