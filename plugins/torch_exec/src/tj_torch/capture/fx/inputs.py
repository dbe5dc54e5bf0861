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
from tj_core.extend import define, meta_text

from tj_torch.capture.ambient import ambient_check, ambient_texts
from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.ops.convert import tensor_proxy

__all__ = ["Inputs", "OpenProgramError", "Slot", "hooks_of"]


class OpenProgramError(Exception):
    """The graph does not show all that the program does: it calls Python code, or takes objects."""


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
    if not ({conditions}):
        return None
{reads}
    if not ({checks}):
        return None
    return run({inputs})
"""


def hooks_of(module: torch.nn.Module) -> list[Any]:
    """Dictionaries of hooks that run when ``module`` is called."""
    return [vars(module)[name] for name in _HOOKS]


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass
class Inputs:
    """Inputs and guards of one entry, collected while its program is acquired.

    ``parameters`` are the placeholders' names in the generated function. ``tensors`` are the
    distinct tensors of the call that is compiled, ``expressions`` the code that reads each, and
    ``names`` their names in the trace. ``conditions`` are guards on other values as code,
    ``same`` those on tensors passed twice, ``texts`` all of these for printing; ``scope`` holds
    the constants that the code uses.
    """

    module: torch.nn.Module
    parameters: Sequence[str]
    tensors: list[torch.Tensor] = field(default_factory=list)
    expressions: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self._owners: dict[str, tuple[str, Any]] = {"": ("m", self.module)}
        self._state: dict[str, Any] = {}
        self.scope["m"] = self.module

    # ------------------------------------------------------------------ arguments

    def argument(self, expression: str, value: Any, name: str) -> Any:
        """``value`` with slots for its tensors; everything else becomes a guard.

        :raises OpenProgramError: for an object other than values of PyTorch and plain Python.
        """
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(expression, value, name)
        if kind is tuple or kind is list:
            self._where(f"type({expression}) is {kind.__name__}", f"len({expression}) == ", value)
            items = [
                self.argument(f"{expression}[{i}]", item, f"{name}_{i}")
                for i, item in enumerate(value)
            ]
            return kind(items)
        if kind is dict:
            return self._dict(expression, value, name)
        return self._constant(expression, value, name)

    def _where(self, condition: str, size: str, value: Any) -> None:
        self.conditions += [condition, f"{size}{len(value)}"]

    def _dict(self, expression: str, value: dict[Any, Any], name: str) -> Any:
        self.conditions.append(f"type({expression}) is dict")
        keys = self._bind("k", tuple(value))
        if not all(type(key) in (str, int) for key in value):
            raise OpenProgramError(f"{name} has keys that are no strings or integers")
        self.conditions.append(f"tuple({expression}) == {keys}")
        return {
            key: self.argument(f"{expression}[{key!r}]", item, f"{name}_{key}")
            for key, item in value.items()
        }

    def _constant(self, expression: str, value: Any, name: str) -> Any:
        kind = type(value)
        if kind in _SINGLETONS:
            self.conditions.append(f"{expression} is {value!r}")
        elif kind is float:
            self.conditions += [f"type({expression}) is float", self._float(expression, value)]
        elif kind in _LITERALS:
            kept = self._bind("v", value)
            self.conditions += [
                f"type({expression}) is {self._bind('t', kind)}",
                f"{expression} == {kept}",
            ]
        else:
            raise OpenProgramError(f"{name} is a {kind.__module__}.{kind.__qualname__}")
        self.texts.append(f"{name} == {value!r}")
        return value

    def _float(self, expression: str, value: float) -> str:
        if math.isnan(value):
            return f"{expression} != {expression}"
        if value == 0.0:
            sign = self._bind("v", math.copysign)
            return f"{expression} == 0.0 and {sign}(1.0, {expression}) == {math.copysign(1, value)}"
        return f"{expression} == {self._bind('v', value)}"

    def tensor(self, expression: str, value: torch.Tensor, name: str) -> Slot:
        """Slot of a tensor; a tensor that is an input already gets its slot and an identity guard.

        :raises OpenProgramError: for subclasses and layouts that the guards do not support.
        """
        if type(value) not in PLAIN_TENSORS or value.layout is not torch.strided:
            raise OpenProgramError(f"{name} is a {type(value).__qualname__}, {value.layout}")
        known = self._slots.get(id(value))
        if known is not None:
            self.same.append(f"x{known.index} is {expression}")
            self.texts.append(f"{name} is {self.names[known.index]}")
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
            bound = self._bind("m", value)
            self.conditions.append(f"{read.format(owner)} is {bound}")
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
        owner, module = self._owner(path)
        attributes = {k: copy.copy(v) for k, v in vars(module).items() if _is_plain(v)}
        names = ", ".join(f"{owner}_d.get({k!r})" for k in attributes)
        self.scope[f"{owner}_d"] = vars(module)
        self.scope[f"{owner}_v"] = tuple(attributes.values())
        self.conditions.append(f"({names},) == {owner}_v")
        for kind in ("_parameters", "_buffers"):
            self.scope[f"{owner}{kind}"] = held = vars(module)[kind]
            self.conditions += [
                f"{owner}{kind}.get({k!r}) is None" for k in held if held[k] is None
            ]
        self.conditions += [f"not {self._bind('h', hooks)}" for hooks in hooks_of(module)]
        shown = ", ".join(f"{k}={v!r}" for k, v in attributes.items() if k[0] != "_")
        self.texts.append(f"{path or 'the module'} has {shown}, and no hooks")

    # ------------------------------------------------------------------ generating

    def _bind(self, wish: str, value: Any) -> str:
        name = f"{wish}{len(self.scope)}"
        self.scope[name] = value
        return name

    def enter(
        self, run: Callable[..., Any], extra: Callable[[], bool] | None
    ) -> Callable[..., Any]:
        """Generate the function from the placeholders' values to ``run``'s result.

        It returns None if a guard fails; ``extra`` is a guard to check beside the collected ones.
        """
        ambient = ambient_check()
        scope = {**self.scope, "run": run, "ambient": ambient, "extra": extra}
        checks = list(self.same)
        numbered = [f"x{i}" for i in range(len(self.tensors))]
        if numbered:
            scope["tensors"] = dynamo.tensor_check(self.tensors)
            checks.insert(0, f"tensors({', '.join(numbered)})")
        conditions = ["ambient()", *(["extra()"] if extra else []), *self.conditions]
        reads = [f"    {x} = {e}" for x, e in zip(numbered, self.expressions, strict=True)]
        source = _ENTER.format(
            parameters=", ".join(self.parameters),
            conditions=" and ".join(conditions),
            reads="\n".join(reads),
            checks=" and ".join(checks) or "True",
            inputs=", ".join(numbered),
        )
        return define(source, "enter", scope, "tj inputs")

    def guard_texts(self) -> tuple[str, ...]:
        """Guards as text, to be printed."""
        tensors = [f"{n} has {_shown(t)}" for n, t in zip(self.names, self.tensors, strict=True)]
        distinct = ["the tensors are distinct objects"] if len(tensors) > 1 else []
        return (*self.texts, *tensors, *distinct, *ambient_texts())


def _reader(holder: Any, name: str) -> str:
    """Code that reads ``name`` of ``holder``, a format string over the holder's name."""
    if isinstance(holder, torch.nn.Module):
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


def _shown(tensor: torch.Tensor) -> str:
    return meta_text(tensor_proxy("_", tensor))
