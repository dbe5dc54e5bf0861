"""Programs whose ranks measure, or find on disk, each for itself."""

from __future__ import annotations

from typing import Any

import tj_core as tj
import torch
from tj_torch.extend import agreed_by_ranks
from torch import distributed
from torch.distributed import _functional_collectives as functional


def texts() -> list[str]:
    """The agreed texts of two keys; the first key is asked for twice."""
    rank = distributed.get_rank()
    keys = "ab" if rank == 0 else "ba"
    found = {key: agreed_by_ranks(key, f"{rank} {key}") for key in keys}
    distributed.barrier()
    return [found["a"], found["b"], agreed_by_ranks("a", "later")]


def measured() -> tuple[bool, bool]:
    """True if oneDNN runs a product, and True if this rank's own times say so."""
    from tj_onednn import choice
    from tj_onednn.timing import Times

    own = 0.5 if distributed.get_rank() == 0 else 2.0
    before = choice.compare
    choice.compare = lambda theirs, mine, clock: Times(0.001, 0.001 * own)
    try:
        session = tj.Session(("onednn", "autograd", "torch"), overrides={"disable": ()})
        f = tj.jit(lambda x, w: x @ w, session=session)
        x, w = torch.ones(64, 32), torch.ones(32, 48)
        assert torch.equal(f(x, w), x @ w)
    finally:
        choice.compare = before
    return any(c.symbol.namespace == "onednn" for c in tj.last_trace(f).calls), own < 1


def wrong_on_one() -> Any:
    """The answer of `Choices` on rank 1, where the kernel is wrong, after rank 0 has measured."""
    from tj_onednn.choice import Choices
    from tj_onednn.options import Options
    from tj_onednn.timing import Times

    choices, rank = Choices(Options(cache_dir="none")), distributed.get_rank()
    if rank == 1:
        distributed.barrier()
    mine: Any = Times(0.1, 0.2) if rank == 0 else "oneDNN is wrong by 1 here"
    found = choices.agreed("key", mine)
    if rank == 0:
        distributed.barrier()
        return None if found == mine else found
    return found


def fingerprints(folder: str) -> list[str | None]:
    """The fingerprint of tj-onednn with a folder of this rank's own, asked for twice."""
    from tj_onednn.choice import Choices
    from tj_onednn.options import Options

    options = Options(cache_dir=f"{folder}/{distributed.get_rank()}")
    return [Choices(options).fingerprint() for _ in range(2)]


def kept(folder: str) -> Any:
    """A program with a collective, in its backward too; programs compiled and found on disk."""
    overrides = {"cache_dir": f"{folder}/cache", "disable": ()}
    session = tj.Session(("example_fuser", "torch", "autograd", "distributed"), overrides=overrides)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_gather_tensor_autograd(x * 2, 0, distributed.group.WORLD)
        return y.sin().sum()

    g = tj.jit(f, session=session)
    x = torch.arange(3.0, requires_grad=True)
    g(x).backward()
    assert x.grad is not None
    found = tj.stats(g).program_kept
    return x.grad.tolist(), 2 - found, found
