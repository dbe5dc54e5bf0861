"""The arguments of the call that is exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import PackageError

from tj_torch.package import trees
from tj_torch.package.contract import Argument, arguments_of

__all__ = ["Dynamic", "Given"]

Dynamic = bool | Mapping[str, int | Sequence[int]]
"""Sizes that are symbols: all, none, or those of dimensions of arguments by name."""


@dataclass
class Given:
    """The arguments of the call that is captured.

    Tensors are aliases of the caller's, which bear the marks of dynamic sizes. ``args`` and
    ``kwargs`` make the call: all that can be positional is. ``leaves`` are tensors and plain values
    in order, ``paths`` their names in messages, ``sources`` the expressions by which Dynamo reads
    them in a frame with ``args`` and ``kwargs``.
    """

    arguments: list[Argument]
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    leaves: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Given:
        """The arguments of ``fn(*args, **kwargs)``; tensors require gradients as they do there.

        :raises PackageError: for one that has no place in a package.
        """
        made = cls(arguments_of(fn, [*map(_aliased, args)], _aliased(dict(kwargs))))
        for argument in made.arguments:
            if argument.place == len(made.args):
                made.args.append(argument.value)
            else:
                assert argument.keyword is not None
                made.kwargs[argument.keyword] = argument.value
        made.rows(lambda tensor: "", {})
        return made

    def mark(self, dynamic: Dynamic) -> None:
        """Mark the sizes that are to be symbols.

        :raises PackageError: for a name that is none of a tensor.
        """
        if isinstance(dynamic, bool):
            return
        from tj_torch.torch_private.dynamo import mark_dynamic

        known = {a.name: a.value for a in self.arguments}
        for name, dims in dynamic.items():
            if not isinstance(known.get(name), torch.Tensor):
                tensors = ", ".join(n for n, x in known.items() if isinstance(x, torch.Tensor))
                raise PackageError(
                    f"dynamic: {name} is no argument that is a tensor",
                    hint=f"these are: {tensors}" if tensors else "dynamic=True is for all sizes",
                )
            for dim in [dims] if isinstance(dims, int) else dims:
                mark_dynamic(known[name], dim)

    def rows(
        self, tensor: Callable[[torch.Tensor], str], numbers: Mapping[int, str]
    ) -> list[tuple[str, str | None, int | None, trees.Tree]]:
        """Rows for `Contract`: ``tensor`` says the metadata of tensors, ``numbers`` the symbols of
        leaves by place.
        """
        for known in (self.leaves, self.paths, self.sources):
            known.clear()

        def leaf(value: Any, path: str) -> trees.Tree | None:
            if type(value) in (tuple, list, dict):
                return None
            place = len(self.leaves)
            self.leaves.append(value)
            self.sources.append(path)
            self.paths.append(path.replace(begin, argument.name, 1))
            if isinstance(value, torch.Tensor):
                return ["tensor", tensor(value)]
            if place in numbers:
                return ["number", numbers[place]]
            if trees.value_text(value) is None:
                kind = type(value).__qualname__
                raise PackageError(f"{self.paths[-1]} is a {kind}, which has no place in a package")
            return None

        made = []
        for place, argument in enumerate(self.arguments):
            a = argument
            begin = (
                f"L['args'][{place}]" if place < len(self.args) else f"L['kwargs'][{a.keyword!r}]"
            )
            made.append((a.name, a.keyword, a.place, trees.described(a.value, leaf, begin)))
        return made

    def tensors(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The tensors among the leaves, with their places."""
        return ((i, x) for i, x in enumerate(self.leaves) if isinstance(x, torch.Tensor))


def _aliased(tree: Any) -> Any:
    if type(tree) in (tuple, list):
        return type(tree)(map(_aliased, tree))
    if type(tree) is dict:
        return {key: _aliased(value) for key, value in tree.items()}
    if isinstance(tree, torch.Tensor):
        if type(tree) not in (torch.Tensor, torch.nn.Parameter):
            raise PackageError(f"an argument is a {type(tree).__name__}, not a plain tensor")
        return tree.detach().requires_grad_(tree.requires_grad)
    return tree
