"""The loop of the examples: steps, checkpoints, and going on from the newest one.

`torch.distributed.checkpoint` writes ``.metadata`` when all ranks have written their parts, so a
folder without it is left by a job that died, and not used.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from llama import Llama, batch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

__all__ = ["main", "train"]

MOMENTS = ("forward", "backward", "optimizer", "checkpoint")


def main(parallel: Callable[[Llama], nn.Module], *, same_data: bool = False) -> None:
    """Train what ``parallel`` makes of a model, as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints and losses")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--timeout", type=float, default=300, help="seconds, of collectives")
    parser.add_argument(
        "--die", metavar="RANK:STEP:MOMENT", help=f"a rank that dies once, at one of {MOMENTS}"
    )
    options = parser.parse_args()
    timeout = datetime.timedelta(seconds=options.timeout)
    distributed.init_process_group("gloo", timeout=timeout)

    def at(moment: str, step: int) -> None:
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if first and options.die == f"{distributed.get_rank()}:{step}:{moment}":
            os.kill(os.getpid(), signal.SIGKILL)

    train(parallel, options.folder, options.steps, options.every, same_data, at)
    distributed.destroy_process_group()


def train(
    parallel: Callable[[Llama], nn.Module],
    folder: Path,
    steps: int,
    every: int,
    same_data: bool,
    at: Callable[[str, int], None],
) -> None:
    """Train for ``steps``, or go on from the newest checkpoint in ``folder``.

    ``at`` is told the moments of each step. The loss of each step stands in ``losses.txt``.
    """
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = Llama()
    called = parallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = load(folder, model, optimizer)
    losses = Losses(folder / "losses.txt", first) if rank == 0 else None
    for step in range(first, steps):
        at("forward", step)
        loss = called(batch(step, 0 if same_data else rank))
        at("backward", step)
        loss.backward()
        at("optimizer", step)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        distributed.all_reduce(mean)
        if losses is not None:
            losses.add(step, mean.item() / distributed.get_world_size())
        if (step + 1) % every == 0:
            at("checkpoint", step)
            save(folder, step + 1, model, optimizer)


class Losses:
    """The file with the loss of each step, without those from ``first`` on: they run again."""

    def __init__(self, path: Path, first: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("".join(f"{line}\n" for line in lines[:first]))

    def add(self, step: int, loss: float) -> None:
        """Write the loss of ``step``, with all its digits."""
        with self.path.open("a") as file:
            file.write(f"{step} {loss!r}\n")
        print(f"step {step}: loss {loss:.4f}", flush=True)


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the state before ``step``; each rank writes its part."""
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    checkpoint.save(states, checkpoint_id=folder / f"step-{step}")


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Read the newest whole checkpoint; return the step to go on with, 0 without any."""
    step = max(whole(folder), default=0)
    if step:
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        checkpoint.load(states, checkpoint_id=folder / f"step-{step}")
        set_state_dict(
            model,
            optimizer,
            model_state_dict=states["model"],
            optim_state_dict=states["optimizer"],
        )
    return step


def whole(folder: Path) -> Iterator[int]:
    """The steps of which there is a checkpoint."""
    for path in folder.glob("step-*"):
        if (path / ".metadata").exists():
            yield int(path.name.partition("-")[2])
