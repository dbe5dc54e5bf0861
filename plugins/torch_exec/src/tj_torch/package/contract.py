"""The contract of a package's inputs: what Dynamo guards in a process is checked at each call here.

A contract names the arguments of the exported call, with the metadata of tensors and the values of
everything else. Sizes may be symbols: a size that is one symbol gives it its value, all others are
compared with their expressions, and conditions on symbols have to hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from tj_core.extend import (
    PackageError,
    SymDim,
    TensorProxy,
    evaluate_size,
    meta_text,
    size_symbols,
)
from tj_core.internal import parse_meta

from tj_torch.ops.values.convert import device_to_torch, dtype_to_torch, tensor_proxy
from tj_torch.package.trees import Tree, leaves, value_of, value_text
from tj_torch.runtime.forms import Form, form_of

__all__ = ["Argument", "Contract", "arguments_of"]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the exported call: its name in messages, and the value.

    ``keyword`` is its name as a keyword, None where it has none; ``place`` its position, None for
    an argument that is always a keyword.
    """

    name: str
    value: Any
    keyword: str | None
    place: int | None


def arguments_of(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Argument]:
    """The arguments of ``fn(*args, **kwargs)``, named by the signature of ``fn`` where it has one.

    :raises TypeError: if ``fn`` does not take them.
    """
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        signature = inspect.signature(target)
    except ValueError:  # a builtin
        found = [Argument(f"argument {i}", v, None, i) for i, v in enumerate(args)]
        return [*found, *(Argument(k, v, k, None) for k, v in kwargs.items())]
    given = signature.bind(*args, **kwargs).arguments
    made: list[Argument] = []
    for place, parameter in enumerate(signature.parameters.values()):
        if parameter.name not in given:
            continue
        name, value = parameter.name, given[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            several = enumerate(value)
            made += [Argument(f"{name}[{i}]", item, None, place + i) for i, item in several]
        elif parameter.kind is parameter.VAR_KEYWORD:
            made += [Argument(key, item, key, None) for key, item in value.items()]
        else:
            keyword = None if parameter.kind is parameter.POSITIONAL_ONLY else name
            made.append(
                Argument(
                    name,
                    value,
                    keyword,
                    None if parameter.kind is parameter.KEYWORD_ONLY else place,
                )
            )
    return made


@dataclass(frozen=True)
class Contract:
    """The arguments of a program.

    ``arguments`` are rows of name, keyword, place and tree; the leaves of all trees are counted in
    order. ``ranges`` are conditions on symbols, as text. With ``apart``, the program writes to its
    inputs, and no two tensors may share memory. With ``training``, tensors that require a gradient
    are those that did in the exported call.
    """

    arguments: tuple[tuple[str, str | None, int | None, Tree], ...]
    ranges: tuple[str, ...] = ()
    apart: bool = False
    training: bool = False

    def as_json(self) -> dict[str, Any]:
        """The contract for a manifest."""
        rows = [list(row) for row in self.arguments]
        flags = {"apart": self.apart, "training": self.training}
        return {"arguments": rows, "ranges": list(self.ranges), **flags}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Contract:
        """The contract that `as_json` wrote."""
        rows = tuple(tuple(row) for row in document["arguments"])
        flags = document["apart"], document["training"]
        return cls(rows, tuple(document["ranges"]), *flags)

    # ------------------------------------------------------------------ calls

    def bound(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, int]]:
        """The leaves of a call's arguments, and the values of symbols.

        :raises PackageError: for a call that the package was not made for.
        """
        found: list[Any] = []
        symbols: dict[str, int] = {}
        for (name, _, _, tree), value in zip(
            self.arguments, self._placed(args, kwargs), strict=True
        ):
            self._take(tree, value, name, found, symbols)
        for condition in self.ranges:
            if not _holds(condition, symbols):
                sizes = ", ".join(f"{n} = {symbols[n]}" for n in size_symbols(condition))
                raise PackageError(f"the package is for sizes with {condition}, not for {sizes}")
        for check, value, path in self._sized:
            check.compare(found[value], path, symbols)
        return found, symbols

    def _placed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """The values of the arguments, in order."""
        places, keywords = self._ways
        unknown = kwargs.keys() - keywords if kwargs else None
        more = [i for i in range(len(args)) if i not in places]
        if unknown or more:
            which = min(unknown) if unknown else f"argument {more[0]}"
            known = ", ".join(name for name, *_ in self.arguments)
            raise PackageError(f"{which} was not given when the package was made, but: {known}")
        for name, keyword, place, _ in self.arguments:
            if place is not None and place < len(args):
                if keyword in kwargs:
                    raise PackageError(f"{name} is given twice")
                yield args[place]
            elif keyword is not None and keyword in kwargs:
                yield kwargs[keyword]
            else:
                raise PackageError(f"{name} is missing")

    def _take(
        self, tree: Tree, value: Any, path: str, found: list[Any], symbols: dict[str, int]
    ) -> None:
        """Compare ``value`` with ``tree``; add its leaves to ``found``, sizes to ``symbols``."""
        kind, content = tree
        for part, item, where in _parts(tree, value, path):
            self._take(part, item, where, found, symbols)
        if kind in ("tuple", "list", "dict"):
            return
        if kind == "tensor":
            self._tensors[content].check(value, path, symbols)
        elif kind == "number":
            if type(value) is not int:
                raise _unlike(path, "an int", value)
            symbols[content] = value
        elif value_text(value) != content:
            raise _unlike(path, repr(value_of(content)), value)
        found.append(value)

    @cached_property
    def _ways(self) -> tuple[Set[int], Set[str]]:
        """The places and keywords of arguments."""
        places = {place for _, _, place, _ in self.arguments if place is not None}
        return places, {keyword for _, keyword, _, _ in self.arguments if keyword is not None}

    @cached_property
    def _tensors(self) -> dict[str, _Tensor]:
        texts = {c for *_, tree in self.arguments for kind, c in leaves(tree) if kind == "tensor"}
        return {text: _Tensor.of(text, self.training) for text in texts}

    @cached_property
    def _sized(self) -> list[tuple[_Tensor, int, str]]:
        """The tensors with sizes that are compared once all symbols are known, by leaf."""
        rows = [(tree, name) for name, _, _, tree in self.arguments]
        every = [(leaf, name) for tree, name in rows for leaf in leaves(tree)]
        return [
            (self._tensors[content], i, name)
            for i, ((kind, content), name) in enumerate(every)
            if kind == "tensor" and self._tensors[content].sized
        ]


def _parts(tree: Tree, value: Any, path: str) -> Iterator[tuple[Tree, Any, str]]:
    """The items of a container with their trees and paths; none of a leaf.

    :raises PackageError: if it is another container than ``tree`` says.
    """
    kind, content = tree
    if kind in ("tuple", "list"):
        if type(value).__name__ != kind or len(value) != len(content):
            raise _unlike(path, f"a {kind} of {len(content)}", value)
        for i, (item, part) in enumerate(zip(content, value, strict=True)):
            yield item, part, f"{path}[{i}]"
    elif kind == "dict":
        keys = [key for key, _ in content]
        if type(value) is not dict or [*value] != keys:
            raise _unlike(path, f"a dict with the keys {', '.join(keys)}", value)
        for key, item in content:
            yield item, value[key], f"{path}[{key!r}]"


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Checks of one tensor: ``text`` is its metadata as traces print it."""

    text: str
    dtype: torch.dtype
    device: torch.device
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    sized: bool
    requires_grad: bool | None

    @classmethod
    def of(cls, text: str, training: bool) -> _Tensor:
        p = parse_meta("x", text)
        assert isinstance(p, TensorProxy)
        sized = any(isinstance(n, SymDim) for n in (*p.shape, *p.strides))
        return cls(
            text,
            dtype_to_torch(p.dtype),
            device_to_torch(p.device),
            p.shape,
            p.strides,
            sized,
            p.requires_grad if training else None,
        )

    def check(self, value: Any, path: str, symbols: dict[str, int]) -> None:
        """Compare all of ``value`` but sizes with symbols; note those that are one symbol.

        :raises PackageError: if it differs.
        """
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise _unlike(path, f"a tensor, {self.text}", value)
        fits = (
            value.dtype is self.dtype
            and value.device == self.device
            and value.dim() == len(self.shape)
            and form_of(value) is Form.PLAIN
            and self.requires_grad in (None, value.requires_grad)
        )
        if fits and not self.sized:
            fits = value.shape == self.shape and value.stride() == self.strides
        if not fits:
            raise _unlike(path, f"a tensor, {self.text}", value, self.requires_grad is not None)
        if self.sized:
            for size, actual in zip(self.shape, value.shape, strict=True):
                if isinstance(size, SymDim) and size.name.isidentifier():
                    symbols.setdefault(size.name, actual)

    def compare(self, value: torch.Tensor, path: str, symbols: Mapping[str, int]) -> None:
        """Compare sizes and strides with their expressions.

        :raises PackageError: if one differs.
        """
        pairs = [*zip(self.shape, value.shape, strict=True)]
        pairs += zip(self.strides, value.stride(), strict=True)
        for wanted, actual in pairs:
            if (wanted if isinstance(wanted, int) else _evaluated(wanted.name, symbols)) != actual:
                raise _unlike(path, f"a tensor, {self.text}", value)


def _holds(condition: str, symbols: Mapping[str, int]) -> bool:
    try:
        return bool(_evaluated(condition, symbols))
    except ArithmeticError:  # a division by a size of zero
        return False


def _evaluated(text: str, symbols: Mapping[str, int]) -> Any:
    if text in symbols:
        return symbols[text]
    lookup: Callable[[str], int] = symbols.__getitem__
    return evaluate_size(text, lookup)


def _unlike(path: str, expected: str, value: Any, training: bool = False) -> PackageError:
    return PackageError(f"{path}: expected {expected}, got {_shown(value, training)}")


def _shown(value: Any, training: bool) -> str:
    """``value`` in an error; in inference it does not matter whether it requires a gradient."""
    if not isinstance(value, torch.Tensor):
        text = value_text(value)
        return repr(value) if text is not None else f"a {type(value).__name__}"
    shown = tensor_proxy("x", value)
    return f"a tensor, {meta_text(shown if training else shown.replace(requires_grad=False))}"
