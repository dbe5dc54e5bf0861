"""Small programs that show whether groups and waits of PyTorch do what tj-distributed needs."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator

import tj_core as tj
import torch
from torch import distributed

from tj_distributed import names
from tj_distributed.adapter import gather_out, is_on_gloo
from tj_distributed.groups import GROUPS
from tj_distributed.waits import Waits

__all__ = ["agreeing", "gathering", "overlapping", "waiting"]


def agreeing() -> None:
    """See that a program with a collective announces it in its group's store, and waits.

    Not where this process has a group already: its store is the user's.
    """
    with _group() as made:
        if not made:
            return
        f = tj.jit(_summed, session=tj.Session(["torch", "distributed"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert f(torch.ones(2)).tolist() == [3, 3], "the result is another than eager's"
        text = str(tj.last_trace(f))
        assert "distributed.begin(" in text, "nothing is announced"
        assert "distributed.wait(" in text, "nothing is waited for"
        assert GROUPS.runs() == 1, "the announcement has not run"


def waiting() -> None:
    """See that another thread's wait finds a collective of this one, in one of the two ways."""
    with _group() as made:
        if not made:
            return
        before, waits, group = names.unfinished(), Waits(), distributed.group.WORLD
        assert group is not None
        x = names.ALL_REDUCE(torch.ones(2), "sum", group.group_name)
        try:
            assert names.unfinished() > before, "collectives are not counted"
            waits.wait_for(x, _nothing, _nothing)
            assert names.unfinished() == before, "a thread finds no collective of another"
        finally:
            # PyTorch keeps a collective that nobody waits for, and warns at the end of the process.
            names.WAIT(x)


def gathering() -> None:
    """See that gloo is known, and that a gather into a given tensor is what it runs."""
    with _group() as made:
        group = distributed.group.WORLD
        if not made or group is None:
            return
        assert is_on_gloo(group.group_name), "a group on gloo is not known"
        x, y = torch.ones(2), torch.zeros(2)
        gather_out(x, 1, group.group_name, y)
        assert torch.equal(names.WAIT(y), x), "what is gathered is another value"


def _nothing(*error: BaseException) -> None:
    pass


@contextlib.contextmanager
def _group() -> Iterator[bool]:
    """A group of this process alone; False where it has one already, or there is no gloo."""
    if not distributed.is_gloo_available() or distributed.is_initialized():
        yield False
        return
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield True
    finally:
        distributed.destroy_process_group()


def overlapping() -> None:
    """See that a model in the wrapper for data parallel training has its parameters in groups.

    Not without tj-autograd, and not where this process has a group already.
    """
    if importlib.util.find_spec("tj_autograd") is None:
        return
    with _group() as made:
        if not made:
            return
        session = tj.Session(["torch", "autograd", "distributed"])
        model = tj.jit(torch.nn.Sequential(*map(_linear, range(2))), session=session)
        # About one byte: each parameter fills a bucket.
        wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-6)
        wrapped(torch.ones(1, 2))
        assert "GRADIENT_GROUP=1" in str(tj.last_trace(model)), "the wrapper is not seen"


def _linear(_: int) -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


def _summed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    distributed.all_reduce(y)
    return y + 1
