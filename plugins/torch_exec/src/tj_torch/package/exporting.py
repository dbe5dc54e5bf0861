"""Export: capture and compile a program once, and write down all that its runs need."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import (
    Decline,
    Jitted,
    NumberProxy,
    PackageError,
    TensorProxy,
    Trace,
    meta_text,
    size_symbols,
    symbols_in,
)
from tj_core.internal import without_states

from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.tensor_places import held_by
from tj_torch.dispatch.compiler import GraphCompiler
from tj_torch.guards.ambient import ambient_mode
from tj_torch.ops.service import TorchDialects
from tj_torch.ops.settings.flags import FLAGS, flags_of
from tj_torch.ops.sizes.shape_env import conditions
from tj_torch.ops.values.convert import tensor_proxy
from tj_torch.package import machine
from tj_torch.package.capturing import captured, replayed
from tj_torch.package.contract import Contract
from tj_torch.package.executors import members as members_of
from tj_torch.package.given import Given
from tj_torch.package.program import CONSTANTS, Package, setting
from tj_torch.package.running import text_of
from tj_torch.package.state import State, readable
from tj_torch.package.steps import backwards_of, run_backward
from tj_torch.package.tensors import packed
from tj_torch.package.training import facts_of
from tj_torch.runtime.modes import device_modes

if TYPE_CHECKING:
    from tj_core.extend import Compilation, TrainingParts
    from tj_core.internal import Track

    from tj_torch.ops.sizes.program import Sizes
    from tj_torch.package.capturing import Replayed
    from tj_torch.package.given import Dynamic

__all__ = ["export"]

SETTINGS = ("torch.get_default_dtype", "torch.are_deterministic_algorithms_enabled")
"""Settings that decide what a program computes, whatever it calls."""


def export(
    jitted: Jitted,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: Dynamic,
    training: bool,
) -> Package:
    """The program of ``jitted`` for arguments like these, as a package; see `tj_core.export`.

    :raises PackageError: if the program cannot be captured whole, or does what no package does.
    """
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise PackageError("autocast is on", hint="enter it in the program, not around the export")
    mode = ambient_mode() or ("a default device" if device_modes() else None)
    if mode is not None:
        raise PackageError(f"exported under {mode}")
    # Leaving inference mode switches gradients on.
    with torch.inference_mode(False), torch.set_grad_enabled(training):
        given = Given.of(jitted.fn, args, kwargs)
        _check_distinct(given)
        given.mark(jitted.fn, dynamic)
        return _compiled(jitted, given, dynamic, training).package()


@dataclass(frozen=True)
class _Compiled:
    """A program for ``given``: what was acquired, what became of it, and the code around it.

    ``values`` are the program's inputs in the captured call, ``sources`` the expressions that they
    are read from, ``ranges`` the conditions on symbols, ``sizes`` their values in that call.
    """

    jitted: Jitted
    given: Given
    acquired: Trace
    compilation: Compilation
    call: Replayed
    values: tuple[Any, ...]
    sources: tuple[str, ...]
    ranges: tuple[str, ...]
    sizes: dict[str, int]
    training: bool

    def package(self) -> Package:
        """Write the package."""
        state = State.of(self.jitted.fn)
        inputs = [*self.inputs(state)]
        numbers = self.numbers()
        rows = self.given.rows(self.metadata, numbers)
        symbolic = bool(symbols_in(self.acquired.inputs))
        result = self.call.described(self.given, state.name_of, symbolic)
        writes = any(c.effects.mutates or c.effects.rebinds for c in self.acquired.calls)
        parts = self.parts()
        if parts is not None:
            run_backward(self.compilation, self.values)
        backwards = {} if parts is None else backwards_of(self.compilation, parts)
        if writes:
            state.check_apart()
        traces = self.traces(backwards)
        kernels = [*self.compilation.regions]
        kernels += [kernel for track in backwards.values() for kernel in track.regions]
        session: Any = self.jitted.session  # a `Session`, which has more than `Services` says
        executors, regions, members = members_of([*traces.values()], kernels, session)
        members |= {f"traces/{name}.txt": text_of(trace) for name, trace in traces.items()}
        constants = {n: c for t in traces.values() for n, c in t.constants().items()}
        for name, value in constants.items():
            state.tensors.setdefault(name, value)
            if state.tensors[name] is not value:
                raise PackageError(f"two tensors are called {name}")
        members[CONSTANTS] = packed(state.tensors)
        distributions = dict.fromkeys(facts["distribution"] for facts in executors.values())
        manifest = {
            "name": self.jitted.name,
            "made": machine.facts(["tj-core", "tj-torch", *distributions]),
            "contract": Contract(tuple(rows), self.ranges, writes, self.training).as_json(),
            "sizes": self.sizes,
            "inputs": inputs,
            "result": result,
            "traces": sorted(traces),
            "executors": executors,
            "regions": regions,
            "settings": {path: setting(path) for path in self.settings()},
            "constants": sorted(constants),
            "state": state.facts(self.training),
            "training": None if parts is None else facts_of(parts, traces["computation"].inputs),
            "trained": state.trained() if self.training else [],
            "unused": state.unused(),
        }
        # As it is read from a file: tuples are lists then.
        return Package(json.loads(json.dumps(manifest)), members)

    def inputs(self, state: State) -> Iterator[list[Any]]:
        """The program's inputs for the manifest; adds its own tensors to ``state``.

        :raises PackageError: for an input that no call has.
        """
        places = {id(x): i for i, x in self.given.tensors()}
        for value, p, source in zip(self.values, self.acquired.inputs, self.sources, strict=True):
            if isinstance(p, NumberProxy):
                yield ["size", p.expr]
            elif id(value) in places:
                yield ["leaf", places[id(value)]]
            elif isinstance(p, TensorProxy) and not _is_argument(source):
                if type(value) not in (torch.Tensor, torch.nn.Parameter):
                    said = f"{readable(source)} is a {type(value).__name__}, no plain tensor"
                    raise PackageError(said, hint="a package holds plain tensors only")
                yield ["state", state.add(value, source)]
            else:
                raise PackageError(
                    f"the program computes with {source}, which a package cannot read",
                    hint="pass a tensor instead",
                )

    def numbers(self) -> dict[int, str]:
        """The symbols of arguments that are numbers, by place among the leaves."""
        found = {s: p for s, p in zip(self.sources, self.acquired.inputs, strict=True)}
        numbers = {}
        for i, (value, path) in enumerate(zip(self.given.leaves, self.given.sources, strict=True)):
            p = found.get(path)
            if type(value) is int and isinstance(p, NumberProxy):
                if not p.expr.isidentifier():
                    raise PackageError(f"{self.given.paths[i]} is used as {p.expr}")
                numbers[i] = p.expr
        return numbers

    def metadata(self, tensor: torch.Tensor) -> str:
        """The metadata of an argument, with its symbols."""
        for value, p in zip(self.values, self.acquired.inputs, strict=True):
            if value is tensor:
                assert isinstance(p, TensorProxy)
                return meta_text(p.replace(requires_grad=self.training and p.requires_grad))
        return meta_text(tensor_proxy("x", tensor).replace(requires_grad=False))

    def settings(self) -> tuple[str, ...]:
        """The settings of PyTorch that the program depends on."""
        flags = flags_of(self.acquired, self.jitted.session.tables[FLAGS])
        return tuple(dict.fromkeys((*SETTINGS, *flags)))

    def parts(self) -> TrainingParts | None:
        """The places of values in forward and backward; None for a program without gradients.

        :raises PackageError: if it has gradients that cannot be written down.
        """
        name = self.jitted.name
        found = None
        for transform, payload in self.compilation.wrapped:
            if transform == "functionalize" or (payload is None and not self.training):
                continue
            every = self.jitted.pipeline.transforms
            ranked = next(each for each in every if each.transform.name == transform)
            if ranked.transform.training is None or not self.training:
                raise PackageError(
                    f"{ranked} runs code that has no text",
                    hint="leave it out: plugins=[...] names those to ask",
                )
            found = ranked.transform.training(payload)
        if isinstance(found, Decline):
            raise PackageError(f"{name} cannot be packaged with gradients: {found.reason}")
        if self.training and found is None:
            why = "; ".join(f"{n}: {d.reason}" for n, d in self.compilation.declined)
            if any(ranked.transform.training for ranked in self.jitted.pipeline.transforms):
                hint = "parameters, or arguments of the export, have to require gradients"
            else:
                hint = "a plugin for gradients makes it: pip install tj-autograd"
            raise PackageError(
                f"{name} has no backward program" + (f" ({why})" if why else ""),
                hint="" if why else hint,
            )
        return found

    def traces(self, backwards: Mapping[str, Track]) -> dict[str, Trace]:
        """The finished traces by name: the program, its ``backwards``, and the code around."""
        found = {"computation": self.compilation.traces[-1]}
        epilogue = self.compilation.others.get("epilogue")
        if isinstance(epilogue, Trace):
            found["epilogue"] = epilogue
        found |= {name: track.traces[-1] for name, track in backwards.items()}
        return {name: without_states(trace) for name, trace in found.items()}


def _compiled(jitted: Jitted, given: Given, dynamic: Dynamic, training: bool) -> _Compiled:
    compiler = GraphCompiler(jitted, TorchDialects.of(jitted.session))
    compiler.settle()
    with dynamo.compiling(given.leaves), jitted.lock:
        found = captured(jitted.fn, jitted.name, given, dynamic, compiler.opaque)
        assert found.graph is not None
        with compiler.dialects.within(found.graph):
            names = [argument.name for argument in given.arguments[: len(given.args)]]
            acquired = compiler.acquired(found.graph, found.examples, found.sources, names)
            compilation = compiler.finish(acquired, complete=True)
            # A backward is compiled later, and adds none: it may not ask for more.
            ranges = _ranges(compiler.dialects.sizes, symbols_in(acquired.trace.inputs))
            hint = compiler.dialects.sizes.hint
            sizes = {name: hint(name) for name in symbols_in(acquired.trace.inputs)}
        call = replayed(found, acquired.trace, given)
    values = (*call.inputs, *held_by(acquired.held)())
    sources = tuple(found.sources.get(i, f"constant_{i}") for i in range(len(values)))
    return _Compiled(
        jitted, given, acquired.trace, compilation, call, values, sources, ranges, sizes, training
    )


def _ranges(sizes: Sizes, names: Sequence[str]) -> tuple[str, ...]:
    """The conditions on the symbols ``names``, those of the program's inputs.

    :raises PackageError: for one on something else.
    """
    found = []
    for name in names:
        low, high = sizes.facts(name).bounds
        found += [f"{name} >= {low}"] if low is not None else []
        found += [f"{name} <= {high}"] if high is not None else []
    found += [] if sizes.env is None else conditions(sizes.env)
    made = dict.fromkeys(_settled(sizes, text, names) for text in found)
    for text in made:
        if not set(size_symbols(text)) <= set(names) or not sizes.value(text):
            raise PackageError(f"the program depends on {text}, which its inputs do not say")
    return tuple(text for text in made if size_symbols(text))


def _settled(sizes: Sizes, text: str, names: Sequence[str]) -> str:
    """``text`` with what guards have made of the symbols that are none of ``names`` any more."""
    gone = {n: sizes.settled(n) for n in size_symbols(text) if n not in names}
    return sizes.renamed(text, {n: str(value) for n, value in gone.items() if value is not None})


def _is_argument(source: str) -> bool:
    return source.startswith(("L['args']", "L['kwargs']"))


def _check_distinct(given: Given) -> None:
    """:raises PackageError: if two arguments are one tensor: the program may be for that alone."""
    seen: dict[Any, str] = {}
    for i, tensor in given.tensors():
        key = tensor.untyped_storage().data_ptr() if tensor.numel() else object()
        other = seen.setdefault(key, given.paths[i])
        if other != given.paths[i]:
            raise PackageError(
                f"{other} and {given.paths[i]} share memory",
                hint="export with tensors of their own; in calls they may, unless it is written",
            )
