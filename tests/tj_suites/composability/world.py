"""Python: what a program shares with the world around it: threads, output, randomness, NumPy."""

from __future__ import annotations

import asyncio
import random
import threading
import warnings
from typing import Any

import numpy as np
import torch

from tj_suites.composability.python import affine, example, twice
from tj_suites.composability.row import Jit, falls_back, works


@falls_back("a program that awaits has no single call to compile", "coroutine")
def async_functions(jit: Jit) -> Any:
    """An ``async`` function, jitted."""

    async def f(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return x * 2

    g = jit(f)

    async def main() -> Any:
        return [await g(example()), await g(example())]

    return asyncio.run(main())


@works
def in_async(jit: Jit) -> Any:
    """A jitted function called from coroutines."""
    g = jit(affine)

    async def main() -> Any:
        async def one(k: float) -> Any:
            await asyncio.sleep(0)
            return g(example(), k)

        return await asyncio.gather(one(1.0), one(2.0), one(1.0))

    return asyncio.run(main())


@works
def threads(jit: Jit) -> Any:
    """Calls from several threads; ``threading.local`` read by the program."""
    local = threading.local()

    def f(x: torch.Tensor) -> Any:
        return x * local.scale

    g, found = jit(f), {}

    def run(scale: float) -> None:
        local.scale = scale
        found[scale] = [g(example()) for _ in range(3)]

    for scale in (1.0, 2.0, 3.0):
        thread = threading.Thread(target=run, args=(scale,))
        thread.start()
        thread.join()
    return found


@falls_back("Dynamo does not read context variables", "ContextVar")
def context_variables(jit: Jit) -> Any:
    """``contextvars`` read by the program."""
    import contextvars

    scale = contextvars.ContextVar("scale", default=2.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * scale.get()

    g = jit(f)
    found = twice(g, example())
    token = scale.set(5.0)
    found.append(g(example()))
    scale.reset(token)
    return found, g(example())


@falls_back("Dynamo does not trace warnings", "graph break")
def warnings_inside(jit: Jit) -> Any:
    """``warnings.warn`` in the program."""

    def f(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return x + 1

    return twice(jit(f), example())


@falls_back("Dynamo does not trace print", "print")
def printing(jit: Jit) -> Any:
    """``print`` in the program, of constants and of tensors."""

    def f(x: torch.Tensor) -> torch.Tensor:
        print("before", x.shape)
        y = x + 1
        print(y)
        return y * 2

    return twice(jit(f), example())


@falls_back("Dynamo does not trace seeding", "graph break")
def seeding(jit: Jit) -> Any:
    """``torch.manual_seed`` in the program; random numbers of PyTorch."""

    def f(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return x + torch.rand(3) + torch.randn_like(x)

    def drawn(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3)

    return twice(jit(f), example()), twice(jit(drawn), example())


@falls_back("Dynamo does not trace generators of random numbers", "graph break")
def explicit_generators(jit: Jit) -> Any:
    """A ``torch.Generator`` as argument."""

    def f(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.rand(3, generator=generator)

    g = jit(f)
    generator = torch.Generator().manual_seed(5)
    return twice(g, example(), generator), generator.get_state(), torch.rand(2, generator=generator)


@falls_back("Dynamo does not trace other generators of random numbers", "graph break")
def other_random_numbers(jit: Jit) -> Any:
    """Random numbers of Python and NumPy."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * random.random() + random.randint(0, 10)

    def n(x: torch.Tensor) -> torch.Tensor:
        return x + float(np.random.rand())

    random.seed(0)
    np.random.seed(0)
    found = twice(jit(f), example()), twice(jit(n), example())
    return found, random.random(), np.random.rand()


@works
def numpy_numbers(jit: Jit) -> Any:
    """Numbers that NumPy computes from constants and sizes."""

    def f(x: torch.Tensor) -> Any:
        size = np.prod(x.shape[1:])
        return x.reshape(-1, int(size)) / np.sqrt(size) - np.log(2 * np.pi), type(size)

    return twice(jit(f), example())


@falls_back("NumPy's results differ from PyTorch's, in the last bit or in kind", "NumPy's sin")
def numpy_computes(jit: Jit) -> Any:
    """NumPy that computes, on tensors' data and on arrays."""

    def f(x: torch.Tensor, a: Any) -> Any:
        y = torch.from_numpy(np.sin(a)) + x
        return y, np.asarray(a) * 2, y.numpy().sum()

    found = twice(jit(f), example(), np.ones((2, 3), dtype=np.float32))
    return [[y, torch.from_numpy(a), type(s), float(s)] for y, a, s in found]


@works
def numpy_moves(jit: Jit) -> Any:
    """Arrays as arguments and results; NumPy that moves and converts data."""

    def f(x: torch.Tensor, a: Any) -> Any:
        rows = a.T.reshape(2, 3).astype(np.float64)
        y = torch.from_numpy(rows) + x / np.sqrt(4)
        return y, rows[0], np.stack([a, a]), y.numpy()

    found = twice(jit(f), example(), np.arange(6, dtype=np.float32).reshape(3, 2))
    return [[y, *map(torch.from_numpy, arrays)] for y, *arrays in found]


@falls_back("Dynamo does not enter locks", "graph break")
def locks(jit: Jit) -> Any:
    """A ``threading.Lock`` taken in the program."""
    lock = threading.Lock()

    def f(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x * 2

    return twice(jit(f), example()), lock.locked()
