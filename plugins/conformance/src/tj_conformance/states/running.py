"""Runs of programs whose state changes between calls: once in eager, once under tj."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tj_core as tj
import torch
from torch import nn
from torch.utils import _pytree as pytree

from tj_conformance.programs.modules import module_of
from tj_conformance.states.seeing import Seen, difference, outside, placed, see, see_error, state_of

__all__ = ["CONTEXTS", "WAYS", "Jit", "World", "compare"]

Jit = Callable[..., Any]
"""`tj_core.jit`, or a function in its place, which takes its options."""

CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": nullcontext,
    "no_grad": torch.no_grad,
    "enable": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
"""Modes around calls."""


_KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda x: x,
    "parameter": nn.Parameter,
    "transposed": lambda x: x.t().contiguous().t(),
    "inner": lambda x: x.requires_grad_(),
    "batch": lambda x: torch.stack([x, x]),
}
"""Kinds of arguments."""


class World:
    """The world that a program's changes and calls act on.

    ``m`` is the module, ``f`` what is called, ``h`` handles of hooks, ``opt`` an optimizer, and
    ``ctx`` the name of a mode. ``jit`` is None in eager.
    """

    def __init__(self, here: Any, jit: Jit | None) -> None:
        self.here, self.jit = here, jit
        self.jitted = jit is not None
        # `torch.compile` differs from eager in ways of its own, whatever its backend.
        self.backend = "tj" if self.jitted else "eager"
        self.h: list[Any] = []
        self.ctx, self.x, self.kept = "", torch.ones(3, 4), None
        self.seen: Seen = []
        here.J = self.J
        torch.manual_seed(3)
        self.m: Any = here.Net()
        self.opt: Any = torch.optim.SGD(self.m.parameters(), 0.1)
        self.f: Any = None
        self.again()

    def J(self, f: Any, **options: Any) -> Any:
        """``f``, jitted unless this is eager's world."""
        return f if self.jit is None else self.jit(f, **options)

    def again(self) -> None:
        """Jit the module as it is now."""
        jitted = hasattr(self.m, "__tj__") and self.here.WAY in ("module", "dynamic")
        self.f = self.m if jitted else WAYS[self.here.WAY](self)

    def copy(self, how: Callable[[Any], Any]) -> None:
        """Go on with a copy of what is called, if that is a module."""
        if isinstance(self.f, nn.Module):
            self.m = self.f = how(self.f)

    def add_group(self) -> None:
        """Give the optimizer the parameters that it does not have."""
        known = {id(p) for group in self.opt.param_groups for p in group["params"]}
        new = [p for p in self.m.parameters() if id(p) not in known]
        self.opt.add_param_group({"params": new})

    def call(
        self,
        rows: int,
        *,
        grad: bool = False,
        second: str = "",
        times: int = 1,
        backward: bool = True,
        dtype: bool = False,
        step: bool = False,
        kind: str = "",
        twice: bool = False,
    ) -> None:
        """Call the program with a matrix, take gradients, and note all that a caller sees.

        ``dtype``: of the first parameter. ``twice``: gradients of gradients.
        """
        torch.manual_seed(100 + rows)
        first = next(self.m.parameters(), None) if dtype else None
        leaf = torch.randn(rows, 4, dtype=torch.float32 if first is None else first.dtype)
        leaf = _KINDS[kind](leaf)
        if grad:
            leaf.requires_grad_()
        x = leaf * 1 if kind == "inner" else leaf
        other = torch.randn(rows, 4)
        args = (x, *{"same": [x], "other": [other]}.get(second, []))
        kwargs = {"y": other} if second == "keyword" else {}
        for _ in range(times):
            self._once(x, args, kwargs)
            if backward:
                self._backward(leaf, twice)
            if step and self.here.WAY != "step":
                self._try("step", self.opt.step)

    def _once(self, x: torch.Tensor, args: Any, kwargs: Any) -> None:
        before = [(k, t, _version(t)) for k, t in (*placed(self.m), ("x", x))]
        torch.manual_seed(7)
        with CONTEXTS[self.ctx]():
            out = self._try("call", lambda: self.f(*args, **kwargs))
        self.note("random state", int(torch.get_rng_state().sum()))
        self.note("written", [k for k, t, version in before if _version(t) != version])
        self.note("results", see(out))
        self.outs = [o for o in pytree.tree_leaves(out) if isinstance(o, torch.Tensor)]
        known = [*placed(self.m), ("x", x), *((f"out {i}", o) for i, o in enumerate(self.outs))]
        self.note("identity", [[k for k, t in known if t is o] for _, o in known])
        self.note("memory", [[k for k, t in known if _shares(t, o)] for o in self.outs])

    def _backward(self, leaf: torch.Tensor, twice: bool) -> None:
        roots = [o for o in self.outs if o.requires_grad and o.is_floating_point()]
        if not roots:
            return
        if twice:
            self._try("gradients", lambda: self._double(leaf, roots))
        else:
            weighed = (
                (r.float() * torch.arange(1.0, r.numel() + 1).view(r.shape)).sum() for r in roots
            )
            loss = sum(weighed, torch.zeros(()))
            self._try("backward", loss.backward)
        self.note("x.grad", see(leaf.grad))

    def _double(self, leaf: torch.Tensor, roots: list[torch.Tensor]) -> None:
        leaves = [t for t in (leaf, *self.m.parameters()) if t.requires_grad]
        loss = sum((r.float().square().sum() for r in roots), torch.zeros(()))
        grads = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        self.note("gradients", see([None if g is None else g.detach() for g in grads]))
        squares = [g.float().square().sum() for g in grads if g is not None and g.requires_grad]
        if squares:
            sum(squares, torch.zeros(())).backward()

    def _try(self, what: str, function: Callable[[], Any]) -> Any:
        """Result of ``function``; None if it raises, which is noted."""
        try:
            return function()
        except Exception as error:
            own = self.here.WAY in ("backend", "compile")  # `torch.compile` has its own errors
            self.note(f"{what} raises", "an error" if own else see_error(error))
            return None

    def note(self, what: str, found: Any) -> None:
        """Note a fact of this step."""
        self.seen.append((what, found))


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    first, second = (t.untyped_storage().data_ptr() for t in (one, other))
    return first == second != 0


# --------------------------------------------------------------------------- ways


def _function(w: World) -> Any:
    m = w.m
    return w.J(lambda x, y=None: m(x) * 2 if y is None else m(x, y=y) * 2)


def _argument(w: World) -> Any:
    jitted = w.J(lambda m, x, y=None: m(x, y))
    return lambda *args, **kwargs: jitted(w.m, *args, **kwargs)


def _child(w: World) -> Any:
    kept = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
    for name, child in list(w.m.named_children()):
        if not isinstance(child, kept) and not hasattr(child, "__tj__"):
            setattr(w.m, name, w.J(child))
    return w.m


def _compile(w: World) -> Any:
    w.m.compile(backend=w.backend)
    return w.m


def _step(w: World) -> Any:
    m = w.m

    def step(x: Any, y: Any = None) -> Any:
        w.opt.zero_grad()
        out = m(x, y)
        loss = (out[0] if isinstance(out, tuple) else out).float().square().mean()
        loss.backward()
        w.opt.step()
        return loss.detach()

    return w.J(step)


def _twice(w: World) -> Any:
    m = w.m

    def again(x: Any, y: Any = None) -> Any:
        out = m(x)
        return m(out[0] if isinstance(out, tuple) else out, y), m.last(x)

    return w.J(again)


WAYS: dict[str, Callable[[World], Any]] = {
    "module": lambda w: w.J(w.m),
    "dynamic": lambda w: w.J(w.m, dynamic=True),
    "method": lambda w: w.J(w.m.forward),
    "function": _function,
    "argument": _argument,
    "backend": lambda w: torch.compile(w.m, backend=w.backend),
    "child": _child,
    "compile": _compile,
    "step": _step,
    "twice": _twice,
}
"""Ways to jit a module, by name."""


# --------------------------------------------------------------------------- comparison


def compare(text: str, jit: Jit = tj.jit) -> list[str]:
    """Differences between eager and tj of the program with this ``text``: the first step's."""
    expected, got = _run(text, None), _run(text, jit)
    tolerance = 6e-2 if "'autocast'" in text else 1e-4
    for number, (theirs, mine) in enumerate(zip(expected, got, strict=True)):
        if found := difference(mine, theirs, tolerance):
            return [f"step {number}: {found}"]
    return []


def _run(text: str, jit: Jit | None) -> list[Seen]:
    torch.compiler.reset()
    with module_of(text) as here, outside(), contextlib.ExitStack() as ending:
        ending.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        w = World(here, jit)
        ending.callback(_remove, w.h)
        return [*_steps(w)]


def _steps(w: World) -> Iterator[Seen]:
    for number, (change, call) in enumerate(zip(w.here.CHANGES, w.here.CALLS, strict=True)):
        w.seen = []
        torch.manual_seed(50 + number)
        w._try("change", lambda change=change: change(w))  # type: ignore[misc]
        w._try("caller", lambda call=call: w.call(**call))  # type: ignore[misc]
        w._try("state", lambda: w.seen.extend(state_of(w.m, w.here, w.opt)))
        yield w.seen


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
