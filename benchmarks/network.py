"""Exposed communication on a simulated network: orders of one program, for any number of ranks.

    python benchmarks/network.py [--layers 16] [--models gpt,llama] [--ways ddp,zero2,zero3]
                                 [--ranks 2,8,1024] [--plot FILE.svg] [--timeline FILE.svg]

Nothing is computed or sent: models are on the meta device, and a group of one process is all that
capture needs; shards have the size of what is gathered. Times are estimated by the table in
``tj_distributed/schedule/times.py``, for each number of ranks on paper. A step is a forward and a
backward. Its orders:

- eager: as captured, each collective waited for where the user wrote it, or where its gradient is;
- Inductor: that program, as an FX graph, after ``schedule_overlap_bucketing``, the pass that
  torch.compile runs with ``aten_distributed_optimizations.enable_overlap_scheduling``, with the
  same estimates;
- tj: as scheduled by tj-distributed.
"""

from __future__ import annotations

import argparse
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import tj_core as tj
import torch
from depth import GPT
from drawing import bars, timelines
from tj_distributed.schedule.network import Step, Timeline, simulated
from tj_distributed.schedule.times import SPEEDS, collective_seconds
from torch import distributed, fx, nn
from torch.distributed import _functional_collectives as functional
from torch.utils.flop_counter import flop_registry
from workloads import Llama

WIDTH, HEADS, VOCABULARY, TIME, BATCH = 2048, 16, 32000, 2048, 4

MODELS: Mapping[str, Callable[[int], nn.Module]] = {
    "gpt": lambda layers: GPT(layers, WIDTH, HEADS, VOCABULARY, TIME),
    "llama": lambda layers: Llama(layers, WIDTH, HEADS, VOCABULARY, TIME),
}

# ------------------------------------------------------------------------------------ programs

GATHER: Any = (
    getattr(functional, "all_gather_single_autograd", None)  # PyTorch 2.13 has renamed it
    or functional.all_gather_tensor_autograd
)


class _Mean(torch.autograd.Function):
    """The parameter itself; its gradient is the mean over all ranks."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, group: str) -> torch.Tensor:
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return functional.all_reduce(grad, "avg", ctx.group), None


def reduced(shard: torch.Tensor, group: str) -> torch.Tensor:
    found: torch.Tensor = _Mean.apply(shard, group)
    return found


def gathered(tag: str, shard: torch.Tensor, group: str) -> torch.Tensor:
    return tj.tag(GATHER(shard, 0, group), tag)


WAYS: Mapping[str, Callable[[torch.Tensor, str], torch.Tensor]] = {
    "ddp": reduced,
    "zero2": functools.partial(gathered, "SAVE"),
    "zero3": functools.partial(gathered, "RECOMPUTE"),
}


def parallel(model: nn.Module, way: Callable[[torch.Tensor, str], torch.Tensor]) -> nn.Module:
    """``model`` with properties that make each parameter of a flat one in ``way``."""
    group = distributed.group.WORLD.group_name
    for module in list(model.modules()):
        properties = {}
        for name, p in dict(module.named_parameters(recurse=False)).items():
            delattr(module, name)
            module.register_parameter(f"{name}_flat", nn.Parameter(p.detach().flatten()))

            def full(self: Any, name: str = name, shape: Any = tuple(p.shape)) -> torch.Tensor:
                return way(getattr(self, f"{name}_flat"), group).view(shape)

            properties[name] = property(full)
        if properties:
            module.__class__ = type(module.__class__.__name__, (module.__class__,), properties)
    return model


def compiled(model: str, layers: int, way: str, options: Mapping[str, Any]) -> Any:
    """The jitted model after one step."""
    with torch.device("meta"):
        made = MODELS[model](layers).to(torch.bfloat16)
    config = {"distributed": {"agree": "off", **options}}
    session = tj.Session(["torch", "autograd", "distributed"], overrides=config)
    run = tj.jit(parallel(made, WAYS[way]), session=session)
    tokens = torch.zeros(BATCH, TIME, dtype=torch.long, device="meta")
    run(tokens, tokens).backward()
    return run


# ------------------------------------------------------------------------------------ orders


def steps(module: fx.GraphModule, ranks: int) -> list[Step]:
    """The steps of a program on a network."""
    found: list[Step] = []
    starts: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        start = node.args[0] if _named(node, "wait_tensor") else None
        if start is not None and start.target is operator.getitem:  # one of a bucket's results
            start = start.args[0]
        waits = (starts.pop(start),) if start in starts else ()
        if _is_start(node):
            starts[node] = len(found)
        channel = "0" if _is_start(node) else ""
        found.append(Step(node.name, seconds(node, ranks), channel, waits))
    return found


def _named(node: fx.Node, name: str) -> bool:
    return str(node.target).startswith("_c10d_functional." + name)


def _is_start(node: fx.Node) -> bool:
    return _named(node, "") and not _named(node, "wait_tensor")


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    fx.map_arg(tree, lambda n: found.extend(_values(n)))
    return found


def _values(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v for v in values if isinstance(v, torch.Tensor)]


def _bytes(values: Sequence[torch.Tensor]) -> int:
    return sum(math.prod(v.shape) * v.element_size() for v in values)


def _is_view(node: fx.Node) -> bool:
    """Test if all results share memory with arguments, by the operator's schema."""
    if node.target is operator.getitem:
        return True
    returns = node.target._schema.returns
    return bool(returns) and all(r.alias_info is not None for r in returns)


def seconds(node: fx.Node, ranks: int) -> float:
    """The estimate of ``tj_distributed.schedule.times`` for a node."""
    speeds = SPEEDS["cuda"]
    taken, made = _tensors((node.args, node.kwargs)), _values(node)
    if _is_start(node):
        operation = str(node.target).split(".")[1]
        size = max(_bytes(taken), _bytes(made))
        return collective_seconds(operation, size, ranks, speeds.network, speeds.latency)
    if _named(node, "wait_tensor") or _is_view(node):
        return 0.0
    count = flop_registry.get(node.target.overloadpacket)
    shapes = fx.map_arg(node.args, lambda n: tuple(n.meta["val"].shape))
    operations = count(*shapes, out_val=tuple(made[0].shape)) if count else 0
    moved = _bytes(taken) + _bytes(made)
    return max(operations / speeds.arithmetic, moved / speeds.memory) + speeds.launch


def graph(track: Any) -> fx.GraphModule:
    """The program of ``track``, forward or backward, as an FX graph of ATen operators."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def flat(*inputs: torch.Tensor) -> list[torch.Tensor]:
        results = track.program.function(list(inputs))
        return [x for x in torch.utils._pytree.tree_leaves(results) if isinstance(x, torch.Tensor)]

    given = [
        torch.empty_strided(p.shape, p.strides, dtype=_dtype(p), device="meta")
        for p in track.traces[-1].inputs
    ]
    with torch.no_grad():
        return make_fx(flat, tracing_mode="fake")(*given)


def _dtype(p: Any) -> torch.dtype:
    return {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64}[str(p.dtype)]


def by_inductor(module: fx.GraphModule, ranks: int) -> fx.GraphModule:
    """``module`` in the order of Inductor's pass, by the same estimates."""
    from torch._inductor.fx_passes import overlap_scheduling

    copy = fx.Graph()
    copy.output(copy.graph_copy(module.graph, {}))
    module = fx.GraphModule(module, copy)
    # It estimates for the GPU of this machine before it asks for other figures.
    with mock.patch.object(overlap_scheduling, "estimate_roofline_runtime_ms", return_value=0.0):
        return overlap_scheduling.schedule_overlap_bucketing(
            module,
            compute_estimator="analytical",
            custom_runtime_estimation=lambda node, size: seconds(node, ranks) * 1e3,
        )


ORDERS = ("eager", "Inductor", "tj")

Halves = tuple[fx.GraphModule, fx.GraphModule]


def halves(run: Any) -> Halves:
    """Forward and backward of a jitted model."""
    compilation = run.__tj__.last.compilation
    return graph(compilation), graph(compilation.others["backward"])


def step(modules: Halves, ranks: int) -> tuple[Timeline, Timeline]:
    """A step on the simulated network."""
    forward, backward = (simulated(steps(module, ranks)) for module in modules)
    return forward, backward


def compared(model: str, layers: int, way: str, ranks: Sequence[int]) -> Any:
    """The step in each order, by number of ranks and name."""
    captured = compiled(model, layers, way, {"overlap": False})
    scheduled = halves(compiled(model, layers, way, {}))
    found: dict[int, dict[str, tuple[Timeline, Timeline]]] = {}
    forward, backward = halves(captured)
    for count in ranks:
        found[count] = {"eager": step((forward, backward), count)}
        moved = by_inductor(forward, count), by_inductor(backward, count)
        found[count]["Inductor"] = step(moved, count)
        found[count]["tj"] = step(scheduled, count)
    return found


def milliseconds(timelines: Sequence[Timeline], figure: str) -> float:
    return sum(getattr(one, figure) for one in timelines) * 1e3


def spans(run: Sequence[Timeline]) -> list[list[tuple[float, float]]]:
    """Lines for a picture: computing, the network; the backward follows the forward."""
    lines: list[list[tuple[float, float]]] = [[], []]
    before = 0.0
    for one in run:
        for line, found in zip(lines, (one.computed, one.sent), strict=True):
            line += [(span.begin + before, span.end + before) for span in found]
        before += one.seconds
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--models", default="gpt,llama")
    parser.add_argument("--ways", default="ddp,zero2,zero3")
    parser.add_argument("--ranks", default="2,8,1024")
    parser.add_argument("--plot", metavar="FILE", help="bars of all exposed communication, as SVG")
    parser.add_argument("--timeline", metavar="FILE", help="the last step of the table, as SVG")
    args = parser.parse_args()
    ranks = [int(count) for count in args.ranks.split(",")]
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    groups: dict[str, dict[str, float]] = {}
    print("| program | ranks | computing | communication | " + " | ".join(ORDERS) + " |")
    print("|---|---|---|---|" + "---|" * len(ORDERS))
    for model in args.models.split(","):
        for way in args.ways.split(","):
            found = compared(model, args.layers, way, ranks)
            for count, orders in found.items():
                exposed = {name: milliseconds(run, "exposed") for name, run in orders.items()}
                groups[f"{model} {way}, {count}"] = exposed
                sent = milliseconds(orders["eager"], "communication")
                whole = milliseconds(orders["eager"], "seconds") - exposed["eager"]
                cells = (f"{exposed[name]:.1f}" for name in ORDERS)
                print(f"| {model}, {way} | {count} | {whole:.1f} | {sent:.1f} | ", end="")
                print(" | ".join(cells) + " |", flush=True)
    if args.plot:
        bars(args.plot, "Exposed communication of a step, by order", "ms", groups)
    if args.timeline:
        rows = {name: spans(run) for name, run in orders.items()}
        title = f"A step of {model}, {way}, {count} ranks"
        timelines(args.timeline, title, rows, ("computing", "network"))


if __name__ == "__main__":
    main()
