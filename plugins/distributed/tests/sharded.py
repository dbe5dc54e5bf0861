"""Programs on sharded models, for each process of a group; each returns what it found."""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter
from typing import Any

import tj_core as tj
import tj_distributed
import torch
from torch import distributed, nn
from torch.distributed import checkpoint as saving
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

PLUGINS = ["torch", "autograd", "subclass", "distributed"]


class Mixer(nn.Module):
    """A layer that reads its own parameters and those of another module, in several ways."""

    def __init__(self, width: int, checkpointed: bool) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width, bias=False)
        self.down, self.scale = nn.Linear(2 * width, width), nn.Parameter(torch.ones(1))
        self.checkpointed = checkpointed

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(F.linear(self.norm(x), self.up.weight)) * self.scale
        return x + h @ self.down.weight.t() + self.down.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpointed:
            found: torch.Tensor = checkpoint(self.mixed, x, use_reentrant=False)
            return found
        return self.mixed(x)


class Words(nn.Module):
    def __init__(self, width: int = 6, checkpointed: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.words, self.mixer = nn.Embedding(7, width), Mixer(width, checkpointed)
        self.head = nn.Linear(width, 7, bias=False)
        if tied:
            self.head.weight = self.words.weight
        self.mixer.norm.weight.requires_grad_(False)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        found: torch.Tensor = self.head(self.mixer(self.words(tokens)))
        return found


class Single(nn.Module):
    """Modules of one parameter, for which FSDP2 has buckets of one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.words(tokens).sin())
        return found


LOW = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
LOWEST = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gathered again": ({}, {}),
    "saved": ({}, {"reshard": False}),
    "by budget": ({}, {"reshard": None}),
    "checkpointed": ({"checkpointed": True}, {}),
    "tied": ({"tied": True}, {}),
    "uneven": ({"width": 5}, {}),
    "in bfloat16": ({}, {"policy": LOW}),
    "all in bfloat16": ({}, {"policy": LOWEST}),
}
"""Arguments of the model, and of `shard`, by name."""


def tokens(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + distributed.get_rank())
    return torch.randint(0, 7, (2, 6), generator=generator)


def whole(parameter: Any) -> torch.Tensor:
    found: torch.Tensor = parameter.detach().full_tensor()
    return found


def trained(model: nn.Module, run: Any) -> list[torch.Tensor]:
    """Losses of three steps with clipped gradients, and parameters and buffers after these."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = []
    for step in range(3):
        given = tokens(step)
        logits = run(given[:, :-1]).flatten(0, 1).float()
        loss = F.cross_entropy(logits, given[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return [*found, *map(whole, model.parameters()), *(b.clone() for b in model.buffers())]


def mesh(replicas: bool = False) -> Any:
    if replicas:
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    return init_device_mesh("cpu", (distributed.get_world_size(),))


def started(trace: Any) -> dict[str, int]:
    names = (c.symbol.qualname for c in trace.calls)
    return Counter(n.split(".")[-2] for n in names if "_c10d_" in n and "wait" not in n)


def saved_bytes(run: Any) -> int:
    """Bytes that the forward of ``run`` saves and makes itself."""
    forward = tj.last_trace(run)
    inputs = {p.name for p in forward.inputs}
    saved = {p.name: p for p in forward.outputs[2] if p.name not in inputs}
    return sum(math.prod(p.shape) * p.dtype.bits // 8 for p in saved.values())


def made(kind: type[nn.Module], **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(**arguments)


@functools.cache
def session(bucket_mb: float) -> tj.Session:
    """One session for several programs, which expands an operation once."""
    return tj.Session(PLUGINS, overrides={"distributed": {"bucket_mb": bucket_mb}})


def compared(
    name: str, replicas: bool = False, single: bool = False, bucket_mb: float = 0.0
) -> dict[str, Any]:
    """One model under ``fully_shard``, and jitted after `shard`; what the jitted one starts."""
    arguments, options = CASES[name]
    kind, over = Single if single else Words, mesh(replicas)
    policy = options.get("policy", MixedPrecisionPolicy())
    model: Any = made(kind, **arguments)
    for module in (model.words, model.head) if single else ():
        fully_shard(module, mesh=over)
    eager = trained(model, fully_shard(model, mesh=over, mp_policy=policy))
    found: dict[str, Any] = {"eager": eager}
    model = tj_distributed.shard(made(kind, **arguments), over, **options)
    run = tj.jit(model, session=session(bucket_mb))
    found["jitted"] = trained(model, run)
    forward, backward = tj.last_trace(run), tj.last_trace(run, "backward")
    found |= {"forward": started(forward), "backward": started(backward)}
    found["fallbacks"] = [str(f.reason) for f in tj.stats(run).fallbacks]
    found["saved"] = saved_bytes(run)
    return found


def whole_bytes() -> int:
    """Bytes that the same model saves with its whole parameters."""
    run = tj.jit(made(Words), plugins=PLUGINS)
    run(tokens(0)[:, :-1]).sum().backward()
    return saved_bytes(run)


def eager(name: str) -> dict[str, Any]:
    """One model under ``fully_shard``, and after `shard`, both in eager."""
    arguments, options = CASES[name]
    first: Any = fully_shard(made(Words, **arguments), mesh=mesh())
    second = tj_distributed.shard(made(Words, **arguments), mesh(), **options)
    return {"fully": trained(first, first), "shard": trained(second, second)}


def looked_at(folder: str) -> dict[str, Any]:
    """A sharded model as callers see it outside of its forward."""
    plain = made(Words, width=5)
    names = list(plain.state_dict())
    model: Any = tj_distributed.shard(made(Words, width=5), mesh())
    found: dict[str, Any] = {"names": list(model.state_dict()) == names}
    found["is the parameter"] = model.head.weight is dict(model.named_parameters())["head.weight"]
    found["kept"] = model.head.weight.to_local().untyped_storage().nbytes()
    found["printed"] = str(model) == str(plain)
    found["copied"] = copy.deepcopy(model)(tokens(0)).equal(model(tokens(0)))
    found["equal"] = model(tokens(0)).equal(plain(tokens(0)))
    saving.save(get_model_state_dict(model), checkpoint_id=folder)
    nn.init.zeros_(model.head.weight)
    found["written"] = not model(tokens(0)).any()
    state = get_model_state_dict(model)
    saving.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state)
    found["loaded"] = model(tokens(0)).equal(plain(tokens(0)))
    found["types"] = all(type(v) is DTensor for n, v in state.items() if n != "seen")
    return found


def refused() -> list[str]:
    """Errors of `shard` for models and meshes that it does not take."""
    linear = nn.Linear(3, 4)
    held = nn.Linear(3, 4)
    held.__dict__["beside"] = [held.weight]
    scalar = nn.Module()
    scalar.register_parameter("gain", nn.Parameter(torch.ones(())))
    strided = nn.Linear(3, 4)
    strided.weight = nn.Parameter(torch.ones(3, 4).t())
    over = mesh()
    asked: list[tuple[Any, ...]] = [
        (tj_distributed.shard(nn.Linear(3, 4), over), over),
        (nn.Sequential(tj.jit(linear, plugins=PLUGINS)), over),
        (linear, distributed.group.WORLD), (linear, over, "yes"), (held, over), (scalar, over),
        (strided, over), (nn.LazyLinear(3), over), (torch.sin, over), (nn.LSTM(2, 2), over),
    ]  # fmt: skip
    found = []
    for arguments in asked:
        try:
            tj_distributed.shard(*arguments)
            found.append("nothing")
        except (TypeError, ValueError) as error:
            found.append(str(error))
    assert type(linear) is nn.Linear, "nothing is changed before it is refused"
    return found
