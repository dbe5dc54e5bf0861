"""Every module of PyTorch's ``module_db``, jitted, against eager: forward, gradients, buffers."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tj_core as tj
import torch
from torch.utils import _pytree as pytree

from tj_conformance.oracle.compare import differences, seeded
from tj_conformance.oracle.device import device
from tj_conformance.oracle.nearness import doubled, judged
from tj_conformance.oracle.result import Result
from tj_conformance.oracle.twins import clone_tree

__all__ = ["module_calls", "modules", "run_module"]


def modules(dtype: torch.dtype = torch.float32) -> list[Any]:
    """The entries of module_db that support ``dtype`` on the CPU."""
    from torch.testing._internal.common_modules import module_db

    return [m for m in module_db if dtype in m.supported_dtypes(device())]


def run_module(
    info: Any, *, training: bool, count: int = 3, jit: Callable[[Any], Any] = tj.jit
) -> Result:
    """Compare ``count`` samples; in training also all gradients and the buffers afterwards."""
    result = Result(info.name)
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info, device=device(), dtype=torch.float32, requires_grad=training, training=training
    )
    for number, sample in enumerate(itertools.islice(inputs, count)):
        if sample.forward_input is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _sample(info, sample, training, jit, result, f"sample {number}")
    return result


def module_calls(info: Any, *, training: bool, count: int = 2) -> Iterator[tuple[Any, Any]]:
    """Yield a maker of the module of each sample, and the arguments of its call."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = info.module_inputs_func(
            info, device=device(), dtype=torch.float32, requires_grad=training, training=training
        )
        taken = list(itertools.islice(inputs, count))
    for sample in taken:
        if sample.forward_input is not None:
            given = sample.forward_input
            make = functools.partial(_build, info, sample, training)
            yield make, (tuple(given.args), dict(given.kwargs))


def _sample(
    info: Any,
    sample: Any,
    training: bool,
    jit: Callable[[Any], Any],
    result: Result,
    where: str,
) -> None:
    try:
        expected = _outcome(_build(info, sample, training), sample, training)
    except Exception:
        result.eager_errors += 1
        return
    result.samples += 1

    def exact() -> Any:
        return _outcome(_build(info, sample, training).double(), sample, training, doubled)

    try:
        jitted = jit(_build(info, sample, training))
        got = _outcome(jitted, sample, training)
    except Exception as error:
        result.raises(where, error)
        return
    result.differs(where, judged(differences(got, expected), got, expected, exact))
    result.falls_back(where, (f.reason for f in tj.stats(jitted).fallbacks))


def _build(info: Any, sample: Any, training: bool) -> torch.nn.Module:
    torch.manual_seed(3)
    given = sample.constructor_input
    module: torch.nn.Module = info.module_cls(*given.args, **given.kwargs)
    return module.to(device(), torch.float32).train(training)


def _outcome(
    module: Any, sample: Any, training: bool, copied: Callable[[Any], Any] = clone_tree
) -> Any:
    """All results of a step: outputs, gradients, the module's state."""
    args, kwargs = copied((tuple(sample.forward_input.args), dict(sample.forward_input.kwargs)))
    out = seeded(module, args, kwargs, number=5)
    grads = _gradients(out, args, kwargs, module) if training else []
    return out, grads, dict(module.state_dict())


def _gradients(out: Any, args: Any, kwargs: Any, module: torch.nn.Module) -> list[Any]:
    outs = [o for o in pytree.tree_leaves(out) if isinstance(o, torch.Tensor) and o.requires_grad]
    leaves = [*pytree.tree_leaves((args, kwargs)), *module.parameters()]
    wanted = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outs or not wanted:
        return []
    generator = torch.Generator().manual_seed(7)
    tangents = [torch.randn(o.shape, generator=generator).to(o.dtype) for o in outs]
    return list(torch.autograd.grad(outs, wanted, tangents, allow_unused=True))
