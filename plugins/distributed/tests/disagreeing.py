"""Programs whose ranks run different collectives; each returns results or errors of its rank."""

from __future__ import annotations

import datetime
import os
import time
import warnings
from typing import TYPE_CHECKING, Any

import tj_core as tj
import torch
from tj_conformance.oracle.versions import left_to_this_version
from tj_core.extend import Stage, Transform
from torch import distributed
from torch.distributed import _functional_collectives as functional

if TYPE_CHECKING:
    from tj_core.extend import PassContext, Trace

PLUGINS = ["torch", "autograd", "distributed"]


def summed(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = functional.all_reduce(x, "sum", distributed.group.WORLD)
    return found


def jit(fn: Any, **options: Any) -> Any:
    session = tj.Session(PLUGINS, overrides={"distributed": options})
    return tj.jit(fn, session=session)


def seen(call: Any) -> Any:
    """Result of ``call``, or the type and text of its error, with notes and seconds."""
    began = time.monotonic()
    try:
        return call().tolist()
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        return type(error).__name__, f"{error}\n{notes}", time.monotonic() - began


def exchanged() -> Any:
    """Two sums, in another order on rank 1."""

    def f(x: torch.Tensor, y: torch.Tensor, flag: bool) -> torch.Tensor:
        if flag:
            b = summed(y)
            a = summed(x)
        else:
            a = summed(x)
            b = summed(y)
        return a - b

    g = jit(f)
    return seen(lambda: g(torch.ones(2), torch.full((2,), 10.0), distributed.get_rank() == 1))


def one_more() -> Any:
    """A guard that fails on rank 1 alone, whose new program has one sum more."""

    def f(x: torch.Tensor, flag: bool) -> torch.Tensor:
        y = summed(x.sin())
        if flag:
            y = summed(y.cos())
        return y + 1

    g = jit(f)
    before = [seen(lambda: g(torch.ones(3), False)) for _ in range(3)]
    return before, seen(lambda: g(torch.ones(3), distributed.get_rank() == 1))


def known_programs(agree: str) -> Any:
    """Two programs that both ranks have; then each runs another one of them."""

    def f(x: torch.Tensor, flag: bool) -> torch.Tensor:
        return summed(x) if flag else summed(summed(x))

    g = jit(f, agree=agree)
    for flag in (True, False, True, False):
        g(torch.ones(2), flag)

    def then() -> torch.Tensor:
        for _ in range(100):
            found: torch.Tensor = g(torch.ones(2), distributed.get_rank() == 0)
            time.sleep(0.01)
        return found

    return seen(then)


def operands_of_one_line() -> Any:
    """Ranks with and without data: the operands differ, the collective is one."""

    def f(x: torch.Tensor, has_data: bool) -> torch.Tensor:
        loss = (x * x).sum() if has_data else torch.zeros(())
        return summed(loss)

    g = jit(f)
    return seen(lambda: g(torch.ones(3), distributed.get_rank() == 0))


def slow_compile() -> Any:
    """Rank 1 comes two seconds later to the first run."""
    g = jit(lambda x: summed(x) * 2)
    if distributed.get_rank() == 1:
        time.sleep(2)
    return seen(lambda: g(torch.ones(2)))


def lengths() -> Any:
    """Sizes that become symbols on rank 1 alone."""
    g = jit(lambda x: summed(x) * 2)
    if distributed.get_rank() == 1:
        local = distributed.new_group([1])
        h = jit(lambda x: functional.all_reduce(x, "sum", local) * 2)
        for size in (3, 4, 5):
            h(torch.ones(size))
    else:
        distributed.new_group([1])
    return [seen(lambda size=size: g(torch.ones(size))) for size in (4, 5, 6)]


def gradients() -> Any:
    """A program whose backward has a collective, too.

    Gradients in eager and jitted, and if the backward announces it; None where this PyTorch
    leaves the gather, a `torch.autograd.Function`, to itself.
    """

    def f(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_gather_tensor_autograd(x * 2, 0, distributed.group.WORLD)
        return y.sin().sum()

    g, found = jit(f), []
    for fn in (f, g):
        x = torch.arange(3.0, requires_grad=True)
        for _ in range(2):
            fn(x).backward()
        assert x.grad is not None
        found.append(x.grad.tolist())
    if left_to_this_version(tj.stats(g).fallbacks):
        return found, None
    backward = str(tj.last_trace(g, "backward"))
    return found, "distributed.begin" in backward


def _broken(trace: Trace, context: PassContext) -> Trace:
    raise RuntimeError("no")


def _falling_back(fn: Any) -> Any:
    """``fn`` jitted; on rank 1 it falls back to eager."""
    broken = Transform("broken", _broken, Stage.ACQUIRED, falls_back=True)
    found = [broken] if distributed.get_rank() == 1 else []
    session = tj.Session(PLUGINS, overrides={"strict": False})
    return tj.jit(fn, session=session, transforms=found)


def one_in_eager(seconds: float) -> Any:
    """Rank 1 falls back in the first run, in a group with a timeout of ``seconds``."""
    group = distributed.new_group(timeout=datetime.timedelta(seconds=seconds))
    g = _falling_back(lambda x: functional.all_reduce(x, "sum", group) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        return seen(lambda: g(torch.ones(3)))


def one_in_eager_later() -> Any:
    """Rank 1 runs in eager what both have compiled before, and then the program again."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return summed(x.sin()).cos()

    g = jit(f)
    in_eager = f if distributed.get_rank() == 1 else g
    return [seen(lambda h=h: h(torch.ones(3))) for h in (g, g, in_eager, in_eager, g, g)]


def death() -> Any:
    """Rank 1 ends before the third run."""
    g = jit(lambda x: summed(x.sin()) + 1)
    for _ in range(2):
        g(torch.ones(3))
    if distributed.get_rank() == 1:
        os._exit(0)
    return seen(lambda: g(torch.ones(3)))
