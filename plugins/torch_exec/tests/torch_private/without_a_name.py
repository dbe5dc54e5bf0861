"""Programs in processes for which PyTorch lacks one name, as tj-torch is loaded there.

Reads paths of names from the input, a line each, and answers each with a line of JSON: the error of
the user's call or what differs from eager, warnings, fallbacks. A process is forked for each name
from one that has imported PyTorch and nothing of tj-torch but the look-up of names.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import warnings
from typing import Any

import tj_core as tj
import torch
from tj_torch.torch_private import lookup
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

IMPORTED = (
    "torch._dynamo",
    "torch._dynamo.variables.builder",
    "torch._functorch.aot_autograd",
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
)
"""Modules that take long to import."""


def example(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w) + 1


def in_contexts(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    with torch.inference_mode():
        size = w.sum()
    return y.float() + 1, size + 1


def attending(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w)[None, None]
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(y, y, y)


def convolving(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(x[None, None], w[None, None, :2, :2])


def checkpointed(x: torch.Tensor, w: torch.Tensor) -> Any:
    return checkpoint(example, x, w, use_reentrant=False)


def writing(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[0].mul_(3)
    return (y @ w).t()


PROGRAMS = (example, in_contexts, attending, convolving, checkpointed, writing)


def outcome(program: Any, under: Any) -> list[Any]:
    """Values, types, strides and gradients of ``program``."""
    torch.manual_seed(0)
    x, w = torch.rand(4, 4, requires_grad=True), torch.rand(4, 4)
    found: list[Any] = []
    for _ in range(2):
        with under:
            made = program(x, w)
        results = made if isinstance(made, tuple) else (made,)
        found += [(r.tolist(), str(r.dtype), r.stride()) for r in results]
        (grad,) = torch.autograd.grad(results[0].square().sum(), x)
        found += [grad.tolist(), grad.stride()]
    return found


def run() -> dict[str, Any]:
    """Compare each program with itself under tj."""
    answer: dict[str, Any] = {"error": "", "said": [], "fallbacks": {}}
    session = tj.Session(["torch", "autograd"], overrides={"strict": False})
    for program in PROGRAMS:
        for under in (torch.enable_grad(), torch.device("cpu")):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                mine = tj.jit(program, session=session)
                found, expected = outcome(mine, under), outcome(program, under)
            if found != expected:
                answer["error"] += f"{program.__name__} is not eager's\n"
            answer["said"] += [
                str(w.message) for w in caught if issubclass(w.category, tj.TjWarning)
            ]
            reasons = [f.reason for f in tj.stats(mine).fallbacks]
            answer["fallbacks"].setdefault(program.__name__, []).extend(reasons)
    layer = torch.nn.Linear(4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jitted = tj.jit(layer, session=session)
        graph = tj.jit(torch.fx.symbolic_trace(layer), frontend="fx", session=session)
    x = torch.ones(1, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not torch.equal(jitted(x), layer(x)) or not torch.equal(graph(x), layer(x)):
            answer["error"] += "a module is not eager's\n"
    return answer


def without(path: str) -> dict[str, Any]:
    """The answer of a process in which there is no such name."""
    find = lookup.find

    def lacking(asked: str) -> Any:
        if asked == path:
            raise lookup.MissingNameError(path)
        return find(asked)

    lookup.find = lacking
    try:
        return run()
    except BaseException:
        return {"error": traceback.format_exc(), "said": [], "fallbacks": {}}


def main() -> None:
    for module in IMPORTED:
        importlib.import_module(module)
    for line in sys.stdin:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            print(json.dumps(without(line.strip())), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
