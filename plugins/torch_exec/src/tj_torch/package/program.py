"""A package in memory: a callable with its contract, its tensors and its members."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tj_core.extend import (
    PLAIN_CONTEXT,
    PackageError,
    RuleMissingError,
    evaluate_size,
    replace_file,
)
from tj_core.internal import with_states

from tj_torch.guards.ambient import ambient_mode
from tj_torch.ops.context.ambient import autocast_as_in
from tj_torch.ops.naming.paths import function_at
from tj_torch.package.archive import opened, sealed
from tj_torch.package.contract import Contract
from tj_torch.package.executors import implementations, installed
from tj_torch.package.machine import differences
from tj_torch.package.running import parsed, program
from tj_torch.package.tensors import packed, unpacked
from tj_torch.package.trees import rebuilt, value_of, value_text
from tj_torch.runtime.modes import device_modes

__all__ = ["CONSTANTS", "Package", "load", "setting"]

CONSTANTS = "constants.safetensors"
"""Member with the tensors that the program owns: parameters, buffers and constants."""


class Package:
    """A finished program of fixed code, with the tensors that it owns.

    Called with the arguments of its contract, it returns what the exported program returned.
    ``manifest`` and ``members`` are those of its file.
    """

    def __init__(self, manifest: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
        self.manifest = manifest
        self.members = members
        self.contract = Contract.of_json(manifest["contract"])
        self._tensors = unpacked(members[CONSTANTS])
        for name, facts in manifest["state"].items():
            tensor = self._tensors[name].to(facts["device"])
            if facts["requires_grad"]:
                tensor = torch.nn.Parameter(tensor)
            self._tensors[name] = tensor
        self._function = self._program()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Package:
        """The package in the file ``path``, if it is whole, and made for this process.

        :raises PackageError: if it is damaged, or made with other versions or for another machine.
        """
        name = os.fspath(path)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise PackageError(f"{name} cannot be read: {error}") from error
        manifest, members = opened(data, name)
        other = [*differences(manifest["made"])]
        if other:
            raise PackageError(
                f"{name} was not made for this process: {'; '.join(other)}",
                hint="export the program again, with the versions and on the kind of machine here",
            )
        return cls(manifest, members)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the package to the file ``path``, with its tensors as they are now."""
        members = {**self.members, CONSTANTS: packed(self._tensors)}
        manifest = {k: v for k, v in self.manifest.items() if k not in ("members", "format")}
        replace_file(Path(path), sealed(manifest, members))

    # ------------------------------------------------------------------ calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        :raises PackageError: for arguments or settings that it was not made for.
        """
        self._settings.check()
        leaves, symbols = self.contract.bound(args, kwargs)
        training = self.manifest["training"] is not None
        grad = contextlib.nullcontext() if training else torch.no_grad()
        with grad, autocast_as_in(PLAIN_CONTEXT):
            inputs = [read(leaves, symbols) for read in self._readers]
            if self.contract.apart:
                self._check_apart(inputs)
            results = self._function(*inputs)

        def leaf(kind: str, content: Any) -> Any:
            return results[content] if kind == "result" else self._given(kind, content, leaves)

        return rebuilt(self.manifest["result"], leaf)

    def _given(self, kind: str, content: Any, leaves: list[Any]) -> Any:
        return leaves[content] if kind == "leaf" else self._tensors[content]

    @cached_property
    def _settings(self) -> Settings:
        return Settings.of(self.manifest["settings"])

    @cached_property
    def _readers(self) -> list[Callable[[list[Any], Mapping[str, int]], Any]]:
        """A function for each input of the program, of the call's leaves and symbols."""
        return [self._reader(kind, content) for kind, content in self.manifest["inputs"]]

    def _reader(self, kind: str, content: Any) -> Callable[[list[Any], Mapping[str, int]], Any]:
        if kind == "leaf":
            return lambda leaves, symbols: leaves[content]
        if kind == "state":
            return lambda leaves, symbols: self._tensors[content]
        assert kind == "size"
        return lambda leaves, symbols: evaluate_size(content, symbols.__getitem__)

    def _check_apart(self, inputs: list[Any]) -> None:
        tensors = [x for x in inputs if isinstance(x, torch.Tensor) and x.numel()]
        if len({x.untyped_storage().data_ptr() for x in tensors}) != len(tensors):
            raise PackageError(
                "two tensors share memory, and the program writes to one",
                hint="give it a copy of one of them",
            )

    def _program(self) -> Callable[..., Any]:
        constants = {name: self._tensors[name] for name in self.manifest["constants"]}
        executors = installed(self.manifest["executors"])
        texts = {name: self.members[f"traces/{name}.txt"] for name in self.manifest["traces"]}
        traces = {
            name: with_states(parsed(text, constants), executors) for name, text in texts.items()
        }
        rest = executors, self.manifest["regions"], self.members, constants
        known = implementations([*traces.values()], *rest)
        try:
            return program(traces, known, self.manifest["training"])
        except RuleMissingError as error:
            raise PackageError(
                f"the program calls what this process lacks: {error.message}",
                hint="import the library that registers the operator before tj.load",
            ) from error

    # ------------------------------------------------------------------ tensors

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of the exported module that the program uses, by name."""
        return {name: tensor.detach() for name, tensor in self._named()}

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The tensors of the program's own that get gradients; none without ``training``."""
        return (parameter for _, parameter in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """`parameters`, in the module's order, each with its first name there."""
        for name in self.manifest["trained"]:
            parameter = self._tensors[name]
            assert isinstance(parameter, torch.nn.Parameter)
            yield (self.manifest["state"][name]["names"] or [name])[0], parameter

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy the values of ``state`` to the program's parameters and buffers.

        :raises PackageError: if a name is missing or unknown, or metadata differ; nothing is
            copied then.
        """
        own, unused = dict(self._named()), set(self.manifest["unused"])
        for name in sorted(own.keys() ^ (state.keys() - unused)):
            raise PackageError(
                f"{name} is {'missing' if name in own else 'no tensor of the program'}"
            )
        for name, tensor in own.items():
            if state[name].shape != tensor.shape or state[name].dtype is not tensor.dtype:
                wanted, got = _said(tensor), _said(state[name])
                raise PackageError(f"{name}: expected {wanted}, got {got}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, facts in self.manifest["state"].items():
            for alias in facts["names"]:
                yield alias, self._tensors[name]

    def __repr__(self) -> str:
        arguments = ", ".join(name for name, *_ in self.contract.arguments)
        return f"<tj package {self.manifest['name']}({arguments})>"


def load(path: Path) -> Package:
    """See `Package.load`."""
    return Package.load(path)


def setting(path: str) -> Any:
    """The result of the function at ``path``, as `value_text`; None where PyTorch lacks it."""
    function = function_at(path)
    return None if function is None else value_text(function())


@dataclass(frozen=True)
class Settings:
    """PyTorch's settings that a program was compiled with.

    ``rows`` have the path of each function that reads one, the function, and its result then, as a
    value and as `value_text`.
    """

    rows: tuple[tuple[str, Callable[[], Any] | None, Any, list[str] | None], ...]

    @classmethod
    def of(cls, texts: Mapping[str, list[str] | None]) -> Settings:
        """The settings of a manifest: texts by path."""
        return cls(
            tuple(
                (path, function_at(path), None if text is None else value_of(text), text)
                for path, text in texts.items()
            )
        )

    def check(self) -> None:
        """Compare the settings with those of this call.

        :raises PackageError: if one differs.
        """
        for path, read, value, text in self.rows:
            now = None if read is None else read()
            if type(now) is type(value) and now == value and text is not None:
                continue
            said = None if read is None else value_text(now)
            if said != text:
                raise PackageError(
                    f"{path}() is {said and said[1]}, and the package is for {text and text[1]}"
                )
        mode = ambient_mode() or ("a default device" if device_modes() else None)
        if mode is not None:
            raise PackageError(f"called under {mode}, and the program is for calls without")


def _said(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
