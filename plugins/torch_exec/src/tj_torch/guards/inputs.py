"""Inputs and guards of an FX graph's program: one generated function per entry.

FX graphs have no Python control flow, so a program depends only on the metadata of its tensors, the
values of its other arguments, the attributes of the module that it reads, and global state such as
the grad mode. Parameters and buffers are inputs, read from the module at each call.
"""

from __future__ import annotations

import copy
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import Guard, define

from tj_torch.guards.ambient import ambient_check, ambient_texts
from tj_torch.guards.guard import Guards
from tj_torch.guards.modules import hooks_of
from tj_torch.guards.tensors import tensor_check, tensor_texts

__all__ = ["Inputs", "OpenProgramError", "Slot"]


class OpenProgramError(Exception):
    """The graph does not show the whole program: it calls Python code, or takes objects."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Position of a tensor among the inputs."""

    index: int


PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})

_LITERALS = frozenset(
    {int, bool, str, bytes, complex, slice, range, torch.Size}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)
_SINGLETONS = (type(None), type(...))

_ENTER = """
def enter({parameters}):
    try:
        if not ({conditions}):
            return None
    except AttributeError:  # a deleted member counts as changed
        return None
{reads}
    if not ({checks}):
        return None
    return run({inputs})
"""


@dataclass
class Inputs:
    """Inputs and guards of one entry, collected while its program is acquired.

    ``parameters`` are the placeholders' names in the generated function. ``tensors`` are the
    distinct tensors of the call that is compiled, ``expressions`` the code that reads each, and
    ``names`` their names in the trace. ``guards`` are those on other values and on state, ``same``
    those on tensors passed twice.
    """

    module: torch.nn.Module
    parameters: Sequence[str]
    tensors: list[torch.Tensor] = field(default_factory=list)
    expressions: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    guards: Guards = field(default_factory=Guards)
    same: Guards = field(default_factory=Guards)

    def __post_init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self._owners: dict[str, tuple[str, Any]] = {
            "": (self.guards.bind("m", self.module), self.module)
        }
        self._state: dict[str, Any] = {}

    # ------------------------------------------------------------------ arguments

    def argument(self, expression: str, value: Any, name: str) -> Any:
        """``value`` with slots for its tensors; everything else becomes a guard.

        :raises OpenProgramError: for an object other than values of PyTorch and plain Python.
        """
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(expression, value, name)
        if kind is tuple or kind is list:
            self.guards.add(
                f"type({expression}) is {kind.__name__}", f"len({expression}) == {len(value)}"
            )
            items = [
                self.argument(f"{expression}[{i}]", item, f"{name}_{i}")
                for i, item in enumerate(value)
            ]
            return kind(items)
        if kind is dict:
            return self._dict(expression, value, name)
        return self._constant(expression, value, name)

    def _dict(self, expression: str, value: dict[Any, Any], name: str) -> Any:
        self.guards.add(f"type({expression}) is dict")
        keys = self.guards.bind("k", tuple(value))
        if not all(type(key) in (str, int) for key in value):
            raise OpenProgramError(f"{name} has keys that are no strings or integers")
        # In their order, in which a program may iterate.
        self.guards.add(f"tuple({expression}) == {keys}")
        return {
            key: self.argument(f"{expression}[{key!r}]", item, f"{name}_{key}")
            for key, item in value.items()
        }

    def _constant(self, expression: str, value: Any, name: str) -> Any:
        kind, bind = type(value), self.guards.bind
        if kind in _SINGLETONS:
            terms = [f"{expression} is {value!r}"]
        elif kind is float:
            terms = [f"type({expression}) is float", self._float(expression, value)]
        elif kind in _LITERALS:
            # Beside the type, since `True == 1 == 1.0`.
            same = f"{expression} == {bind('v', value)}"
            terms = [f"type({expression}) is {bind('t', kind)}", same]
        else:
            raise OpenProgramError(f"{name} is a {kind.__module__}.{kind.__qualname__}")
        self.guards.add(*terms, text=f"{name} == {value!r}")
        return value

    def _float(self, expression: str, value: float) -> str:
        if math.isnan(value):
            # A NaN equals nothing; only it differs from itself.
            return f"{expression} != {expression}"
        if value == 0.0:
            # `0.0 == -0.0`, but `1 / x` and `copysign` tell them apart.
            sign = self.guards.bind("v", math.copysign)
            return f"{expression} == 0.0 and {sign}(1.0, {expression}) == {math.copysign(1, value)}"
        return f"{expression} == {self.guards.bind('v', value)}"

    def tensor(self, expression: str, value: torch.Tensor, name: str) -> Slot:
        """Slot of a tensor; a tensor that is an input already gets its slot and an identity guard.

        :raises OpenProgramError: for subclasses and layouts that the guards do not support.
        """
        if type(value) not in PLAIN_TENSORS or value.layout is not torch.strided:
            raise OpenProgramError(f"{name} is a {type(value).__qualname__}, {value.layout}")
        known = self._slots.get(id(value))
        if known is not None:
            text = f"{name} is {self.names[known.index]}"
            self.same.add(f"x{known.index} is {expression}", text=text)
            return known
        slot = self._slots[id(value)] = Slot(len(self.tensors))
        self.tensors.append(value)
        self.expressions.append(expression)
        self.names.append(name)
        return slot

    # ------------------------------------------------------------------ the module's state

    def state(self, path: str) -> Any:
        """Attribute of the module at a dotted ``path``: the slot of a tensor, or another value.

        Modules on the way get identity guards.
        """
        if path not in self._state:
            self._state[path] = self._read(path)
        return self._state[path]

    def submodule(self, path: str) -> Any:
        """Object at ``path``, with an identity guard."""
        return self._owner(path)[1]

    def _owner(self, path: str) -> tuple[str, Any]:
        if path not in self._owners:
            before, _, name = path.rpartition(".")
            owner, holder = self._owner(before)
            read = _reader(holder, name)
            value = getattr(holder, name)
            bound = self.guards.bind("m", value)
            self.guards.add(f"{read.format(owner)} is {bound}")
            self._owners[path] = bound, value
        return self._owners[path]

    def _read(self, path: str) -> Any:
        before, _, name = path.rpartition(".")
        owner, holder = self._owner(before)
        value = getattr(holder, name)
        expression = _reader(holder, name).format(owner)
        if isinstance(value, torch.Tensor):
            return self.tensor(expression, value, path.replace(".", "_"))
        if isinstance(value, torch.nn.Module | types.FunctionType):
            return self.submodule(path)
        if type(value) in (int, float, bool, str, type(None)):
            return self._constant(expression, value, path)
        return self.submodule(path)

    def plain_attributes(self, path: str) -> None:
        """Guard the plain attributes of the module at ``path``, and that it has no hooks."""
        module = self._owner(path)[1]
        # A list may be changed in place: the guard would compare it with itself.
        attributes = {k: copy.copy(v) for k, v in vars(module).items() if _is_plain(v)}
        held, bind = self.guards.bind("d", vars(module)), self.guards.bind
        names = ", ".join(f"{held}.get({k!r})" for k in attributes)
        terms = [f"({names},) == {bind('v', tuple(attributes.values()))}"]
        for kind in ("_parameters", "_buffers"):
            state = vars(module)[kind]
            bound = bind("s", state)
            terms += [f"{bound}.get({k!r}) is None" for k in state if state[k] is None]
        terms += [f"not {bind('h', hooks)}" for hooks in hooks_of(module)]
        shown = ", ".join(f"{k}={v!r}" for k, v in attributes.items() if k[0] != "_")
        self.guards.add(*terms, text=f"{path or 'the module'} has {shown}, and no hooks")

    # ------------------------------------------------------------------ generating

    def enter(
        self, run: Callable[..., Any], leaves: Callable[[Sequence[Any]], bool] | None = None
    ) -> Callable[..., Any]:
        """Generate the function from the placeholders' values to ``run``'s result.

        It returns None if a guard fails; ``leaves`` is a check of the inputs' values.
        """
        scope = {**self.guards.scope, "run": run, "ambient": ambient_check(), "leaves": leaves}
        checks = self.same.terms()
        numbered = [f"x{i}" for i in range(len(self.tensors))]
        inputs = ", ".join(numbered)
        if numbered:
            scope["tensors"] = tensor_check(self.tensors)
            checks.insert(0, f"tensors({inputs})")
        if leaves is not None:
            checks.append(f"leaves([{inputs}])")
        reads = [f"    {x} = {e}" for x, e in zip(numbered, self.expressions, strict=True)]
        source = _ENTER.format(
            parameters=", ".join(self.parameters),
            conditions=" and ".join(["ambient()", *self.guards.terms()]),
            reads="\n".join(reads),
            checks=" and ".join(checks) or "True",
            inputs=inputs,
        )
        return define(source, "enter", scope, "tj inputs")

    def printed(self) -> tuple[Guard, ...]:
        """All guards for `tj.guards`."""
        tensors = tensor_texts(self.names, self.tensors)
        texts = (*self.guards.texts(), *self.same.texts(), *tensors, *ambient_texts())
        return tuple(map(Guard, texts))


def _reader(holder: Any, name: str) -> str:
    """Code that reads ``name`` of ``holder``, a format string over the holder's name."""
    if isinstance(holder, torch.nn.Module):
        # `module.weight` is found by `Module.__getattr__`, in Python, at each call.
        for kept in ("_parameters", "_buffers", "_modules"):
            if name in vars(holder)[kept]:
                return f"{{}}.{kept}.get({name!r})"
        if name in vars(holder):
            return f"{{}}.__dict__.get({name!r})"
    return f"{{}}.{name}"


def _is_plain(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    return type(value) in (int, float, bool, str, type(None), torch.dtype, torch.device)
