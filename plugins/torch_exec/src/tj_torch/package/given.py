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
    ``kwargs`` make the call. ``leaves`` are tensors and plain values
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
            # As in the call: the module of an ExportedProgram takes a keyword as none but that.
            if argument.place == len(made.args) and (
                argument.place < len(args) or argument.keyword is None
            ):
                made.args.append(argument.value)
            else:
                assert argument.keyword is not None
                made.kwargs[argument.keyword] = argument.value
        made.rows(lambda tensor: "", {})
        return made

    def mark(self, fn: Any, dynamic: Dynamic) -> None:
        """Mark the sizes that are to be symbols: those of ``dynamic``, and those of a graph ``fn``.

        :raises PackageError: for a name that is none of a tensor, or a dimension that it lacks.
        """
        from tj_torch.torch_private.dynamo import mark_dynamic

        for tensor, dim in _symbolic(fn, self.leaves):
            mark_dynamic(tensor, dim)
        if isinstance(dynamic, bool):
            return
        if not isinstance(dynamic, Mapping):
            raise PackageError(
                f"dynamic: {dynamic!r} is neither a bool nor a dict",
                hint='name arguments and dimensions: dynamic={"x": 0}',
            )
        known = {a.name: a.value for a in self.arguments}
        for name, dims in dynamic.items():
            if not isinstance(known.get(name), torch.Tensor):
                tensors = ", ".join(n for n, x in known.items() if isinstance(x, torch.Tensor))
                raise PackageError(
                    f"dynamic: {name} is no argument that is a tensor",
                    hint=f"these are: {tensors}" if tensors else "dynamic=True is for all sizes",
                )
            count = known[name].dim()
            for dim in [dims] if isinstance(dims, int) else dims:
                if not -count <= dim < count:
                    raise PackageError(f"dynamic: {name} has {count} dimensions, and none {dim}")
                mark_dynamic(known[name], dim % count)

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


def _symbolic(fn: Any, leaves: Sequence[Any]) -> Iterator[tuple[torch.Tensor, int]]:
    """Dimensions of ``leaves`` that are symbols in the graph ``fn``, as an ExportedProgram's."""
    if not isinstance(fn, torch.fx.GraphModule):
        return
    placeholders = [node for node in fn.graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(leaves):
        return
    for node, leaf in zip(placeholders, leaves, strict=True):
        value = node.meta.get("val")
        if isinstance(leaf, torch.Tensor) and isinstance(value, torch.Tensor):
            sizes = enumerate(value.shape)
            yield from ((leaf, i) for i, n in sizes if isinstance(n, torch.SymInt))


def _aliased(tree: Any) -> Any:
    if type(tree) in (tuple, list):
        return type(tree)(map(_aliased, tree))
    if type(tree) is dict:
        return {key: _aliased(value) for key, value in tree.items()}
    if isinstance(tree, torch.Tensor):
        if type(tree) not in (torch.Tensor, torch.nn.Parameter):
            raise PackageError(f"an argument is a {type(tree).__name__}, not a plain tensor")
        if tree.layout is not torch.strided:
            raise PackageError(f"an argument is a tensor of layout {tree.layout}")
        return tree.detach().requires_grad_(tree.requires_grad)
    return tree
