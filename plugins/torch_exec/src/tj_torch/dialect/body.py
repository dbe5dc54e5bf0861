"""From a recording to a `Body`: dead calls removed, values named, metadata and aliases noted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.proxy import Proxy
from tj_core.symbol import (
    NO_EFFECTS,
    PLAIN_CONTEXT,
    Alias,
    Body,
    BoundSymbol,
    Constant,
    Context,
    Effects,
)
from tj_core.tree import leaves, map_tree

from tj_torch.dialect import private
from tj_torch.dialect.context import AUTOCAST
from tj_torch.dialect.convert import device_to_core, tensor_proxy, to_core
from tj_torch.dialect.recorder import Recorded, Recorder, Ref

__all__ = ["BodyBuilder", "alias_facts", "live_calls", "references"]


def live_calls(
    calls: Sequence[Recorded], needed: Iterable[Ref], *, keep_draws: bool = True
) -> list[Recorded]:
    """The calls that ``needed`` values depend on, and those that are never dead, in order."""
    live = set(needed)
    kept = []
    for call in reversed(calls):
        if (
            (call.draws and keep_draws)
            or call.facts.kept
            or not live.isdisjoint(references(call.outputs))
        ):
            kept.append(call)
            live.update(references((call.args, call.kwargs)))
    return kept[::-1]


def references(tree: Any) -> Iterator[Ref]:
    """The references among the leaves of ``tree``, in order."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, Ref))


def alias_facts(
    outputs: Sequence[torch.Tensor], arguments: Mapping[int, torch.Tensor]
) -> tuple[Alias, ...]:
    """Which of ``outputs`` share storage with ``arguments`` (by index) or each other, or are them.

    An output that is a view of neither is a view of a hidden value.
    """
    objects = {id(t): ("arg", i) for i, t in reversed(list(arguments.items()))}
    storages = {private.storage_id(t): ("arg", i) for i, t in reversed(list(arguments.items()))}
    facts = []
    for j, out in enumerate(outputs):
        storage = private.storage_id(out)
        same = objects.setdefault(id(out), ("out", j))
        shared = storages.setdefault(storage, ("out", j))
        if same != ("out", j):
            facts.append(Alias(j, *same, identical=True))  # type: ignore[arg-type]
        elif shared != ("out", j):
            facts.append(Alias(j, *shared))  # type: ignore[arg-type]
        elif out._is_view():
            facts.append(Alias(j, "hidden"))
    return tuple(facts)


@dataclass
class BodyBuilder:
    """Turns the recording of one call into its body.

    ``inputs`` pairs the references of the call's arguments with their formal proxies; ``grad`` and
    ``context`` are what the call runs under.
    """

    recorder: Recorder
    inputs: Sequence[tuple[Ref, Proxy]]
    grad: bool
    context: Context
    names: dict[Ref, Proxy | Constant] = field(default_factory=dict)
    defined: int = 0

    def build(
        self,
        outputs: Any,
        updates: Iterable[tuple[int, Ref]] = (),
        calls: Sequence[Recorded] | None = None,
    ) -> Body:
        """The body; ``outputs`` is a tree of references and core constants.

        ``calls`` are those of the recording that it may consist of, if not all.
        """
        updates = tuple(updates)
        self.names.update(self.inputs)
        needed = [*references(outputs), *(ref for _, ref in updates)]
        recorded = self.recorder.calls if calls is None else calls
        live = live_calls(recorded, needed)
        off = self._without_autocast()
        return Body(
            tuple(p for _, p in self.inputs),
            tuple([self._call(call, off) for call in live]),
            map_tree(self.value, outputs, Ref),
            tuple((i, self.value(ref)) for i, ref in updates),
        )

    def value(self, ref: Ref) -> Proxy | Constant:
        """The proxy or constant that stands for ``ref``."""
        found = self.names.get(ref)
        if found is None:
            found = self.names[ref] = _tensor_constant(
                self.recorder.constants[ref.index], self.recorder.table.constants
            )
        return found

    def _call(self, call: Recorded, context: Context) -> BoundSymbol:
        args, kwargs = self._arguments((call.args, call.kwargs))
        outputs = map_tree(self._define, call.outputs)
        if call.grad != self.grad:
            context = context.with_("grad", call.grad)
        return BoundSymbol(
            call.facts.symbol,
            args,
            tuple(kwargs.items()),
            outputs,
            self._effects(call),
            context=context,
        )

    def _arguments(self, tree: Any) -> Any:
        return map_tree(lambda x: self.value(x) if type(x) is Ref else to_core(x), tree)

    def _define(self, leaf: Any) -> Any:
        if type(leaf) is not Ref:
            return to_core(leaf)
        proxy = tensor_proxy(f"_{self.defined}", self.recorder.values[leaf.index])
        self.defined += 1
        self.names[leaf] = proxy
        return proxy

    def _effects(self, call: Recorded) -> Effects:
        values = self.recorder.values
        refs = [r for r in references((call.args, call.kwargs)) if isinstance(self.names[r], Proxy)]
        inputs = {i: values[r.index] for i, r in enumerate(refs)}
        outputs = [values[r.index] for r in references(call.outputs)]
        aliases = tuple(a for a in alias_facts(outputs, inputs) if a.kind != "hidden")
        ordered = _ordered(call, [*outputs, *inputs.values()])
        return Effects(aliases=aliases, ordered=ordered) if aliases or ordered else NO_EFFECTS

    def _without_autocast(self) -> Context:
        """Operators are recorded below autocast, so a body must not meet it again."""
        on = {k: None for k, v in self.context.items if k.startswith(AUTOCAST) and v}
        return Context(tuple(on.items())) if on else PLAIN_CONTEXT


def _ordered(call: Recorded, tensors: Sequence[torch.Tensor]) -> tuple[str, ...]:
    found = []
    if call.draws:
        device = tensors[0].device if tensors else torch.device("cpu")
        found.append(f"random:{device_to_core(device)}")
    if call.facts.collective:
        found.append("collective")
    elif call.facts.kept:
        found.append("side_effect")
    return tuple(found)


def _tensor_constant(data: torch.Tensor, interned: MutableMapping[str, torch.Tensor]) -> Constant:
    """A constant named by what it holds, so that equal programs print alike.

    Tensors that hold the same are one object in ``interned``: bodies never write them.
    """
    with private.without_modes():
        plain = data.detach().resolve_conj().resolve_neg().cpu().contiguous()
        content = bytes(plain.clone().untyped_storage())
    described = f"{data.dtype} {tuple(data.shape)} {data.stride()} {data.device}".encode()
    name = f"_tensor_{hashlib.sha256(described + content).hexdigest()[:12]}"
    return Constant(name, interned.setdefault(name, data), named=False)
