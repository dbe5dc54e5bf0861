"""Small program that shows whether groups and waits of PyTorch do what tj-distributed needs."""

from __future__ import annotations

import warnings

import tj_core as tj
import torch
from torch import distributed

from tj_distributed.groups import GROUPS

__all__ = ["agreeing"]


def agreeing() -> None:
    """See that a program with a collective announces it in its group's store, and waits.

    Not where this process has a group already: its store is the user's.
    """
    if not distributed.is_gloo_available() or distributed.is_initialized():
        return
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        f = tj.jit(_summed, session=tj.Session(["torch", "distributed"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert f(torch.ones(2)).tolist() == [3, 3], "the result is another than eager's"
        text = str(tj.last_trace(f))
        assert "distributed.begin(" in text, "nothing is announced"
        assert "distributed.wait(" in text, "nothing is waited for"
        assert GROUPS.runs() == 1, "the announcement has not run"
    finally:
        distributed.destroy_process_group()


def _summed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    distributed.all_reduce(y)
    return y + 1
