"""Made-up programs that differentiate, as Python text; a hypothesis strategy makes them.

A program has layers, functions of two matrices, which are compiled, and a body that calls them
several times, on results of others and on values computed outside. Then it takes gradients of
gradients, by leaves and by intermediate values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tj_conformance.programs.matrices import bodies, call

__all__ = ["Program", "programs"]

SIZE = "3"
"""Number of rows and of columns of each matrix."""


@dataclass(frozen=True, slots=True)
class Program:
    """``layers`` are bodies of functions of ``a`` and ``b``; ``body`` calls them, and collects the
    values to compare in a list, ``found``.
    """

    layers: tuple[tuple[str, ...], ...]
    body: tuple[str, ...]

    def __str__(self) -> str:
        """A file with ``program``, which takes the function that compiles a layer."""
        lines = ["import torch", ""]
        for i, layer in enumerate(self.layers):
            lines += ["", f"def layer{i}(a, b):", *(f"    {line}" for line in layer), ""]
        lines += ["", "def program(jit):", *(f"    {line}" for line in self.body)]
        return "\n".join([*lines, "    return found", ""])


@st.composite
def programs(draw: Any) -> Program:
    """Programs of up to three layers."""
    layers = draw(st.lists(bodies(SIZE), min_size=1, max_size=3))
    body = _body(draw, [len(layer.returned) for layer in layers])
    return Program(tuple(tuple(str(layer).splitlines()) for layer in layers), tuple(body))


def _body(draw: Any, returned: list[int]) -> list[str]:
    lines = [
        "torch.manual_seed(0)",
        "x, w = (torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))",
        *(f"f{i} = jit(layer{i})" for i in range(len(returned))),
    ]
    names = ["x", "w"]
    for i in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 3)) == 0:
            lines.append(f"y{i} = {call(draw, names, SIZE)}")
            names.append(f"y{i}")
            continue
        layer = draw(st.integers(0, len(returned) - 1))
        made = [f"y{i}_{j}" for j in range(returned[layer])]
        given = ", ".join(_argument(draw, names) for _ in range(2))
        lines.append(f"{', '.join(made)}, = f{layer}({given})")
        names += made
    return lines + _gradients(draw, names)


def _argument(draw: Any, names: list[str]) -> str:
    """A matrix; one in four is made for the call, and is gone after it."""
    name = draw(st.sampled_from(names[-3:]) | st.sampled_from(names))
    return f"{name} * 1.5" if draw(st.integers(0, 3)) == 0 else str(name)


def _gradients(draw: Any, names: list[str]) -> list[str]:
    """Lines that differentiate; intermediate values may be deleted before, or have a hook."""
    made = names[2:]
    losses = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    if draw(st.integers(0, 1)) == 0:
        return _first_order(draw, made, losses)
    between = draw(st.lists(st.sampled_from(made), max_size=2, unique=True))
    by = ", ".join(["x", "w", *between])
    gone = [n for n in made if n not in {*losses, *between}]
    lines = ["found = []"]
    if gone and draw(st.booleans()):
        lines.append(f"del {', '.join(gone)}")
    total = " + ".join(f"({name} ** 2).sum()" for name in losses)
    lines += [
        f"loss = {total}",
        f"first = torch.autograd.grad(loss, [t for t in ({by}) if t.requires_grad], "
        "create_graph=True, allow_unused=True)",
        "found += first",
        "again = [g for g in first if g is not None and g.requires_grad]",
    ]
    return lines + (PENALTY if draw(st.booleans()) else HIGHER)


PENALTY = [
    "penalty = loss + sum((g.norm() - 1) ** 2 for g in again)",
    "penalty.backward()",
    "found += [x.grad, w.grad]",
]
HIGHER = [
    "second = torch.autograd.grad(sum((g ** 2).sum() for g in again), [x, w], "
    "create_graph=True, allow_unused=True) if again else []",
    "found += second",
    "more = [g for g in second if g is not None and g.requires_grad]",
    "found += torch.autograd.grad(sum(g.sum() for g in more), [x, w], allow_unused=True) "
    "if more else []",
]
HOOKS = (
    "retain_grad()",
    "register_hook(lambda g: found.append(g.detach()))",
    "register_hook(lambda g: g * 2)",
)


def _first_order(draw: Any, made: list[str], losses: list[str]) -> list[str]:
    """Lines that watch values and run the backward of the losses, together or one by one.

    The second may need what the first has freed.
    """
    watched = draw(st.lists(st.sampled_from(made), max_size=2, unique=True))
    lines = ["found = []"]
    lines += [f"{n}.requires_grad and {n}.{draw(st.sampled_from(HOOKS))}" for n in watched]
    if draw(st.booleans()):
        total = " + ".join(f"({name} ** 2).sum()" for name in losses)
        lines += [f"loss = {total}", "loss.requires_grad and loss.backward()"]
    else:
        retain = draw(st.sampled_from(("", "retain_graph=True")))
        lines += [f"{name}.requires_grad and {name}.sum().backward({retain})" for name in losses]
    lines.append("found += [x.grad, w.grad]")
    return lines + [f"found.append({name}.grad)" for name in watched]
