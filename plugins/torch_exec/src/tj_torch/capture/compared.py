"""Expansions held against what capture saw: Python has decided on the latter, the former runs.

Both are runs of one call on fake tensors, in surroundings that are meant to be the same. Where they
are not (autocast has cached a cast to another data type), the program may have read one data type,
and another would run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from tj_core.extend import BoundSymbol, CaptureError, Dim, NumberProxy, TensorProxy, leaves

from tj_torch.capture.sources import node_source
from tj_torch.ops import convert
from tj_torch.ops.names import resolve
from tj_torch.ops.sizes.program import Sizes
from tj_torch.ops.sizes.shape_env import is_symbolic
from tj_torch.runtime.subclasses import dense_tensors, is_wrapper, is_wrapper_class
from tj_torch.torch_private.ops import ASSERTED_NUMBER

__all__ = ["Comparison", "check_assumed"]

ToDim = Callable[[Any], Dim]
Fact = tuple[str, object, object]


@dataclass(slots=True)
class Comparison:
    """The expanded calls of one program, and what capture saw each of them return.

    Fake tensors keep no history: of one that a later call resizes in place, capture only knows the
    last shape. So calls are noted first, and compared when all of them are known.
    """

    noted: list[tuple[BoundSymbol, Any]] = field(default_factory=list)
    resized: dict[int, Any] = field(default_factory=dict)

    def note(self, call: BoundSymbol, node: torch.fx.Node) -> None:
        """Have ``call``, the expansion of ``node``, compared; some nodes say nothing."""
        if "example_value" in node.meta:
            self.noted.append((call, node.meta["example_value"]))
        if call.effects.rebinds:
            self.resizes(node)

    def resizes(self, node: torch.fx.Node) -> None:
        """Note that ``node`` may change the shape of its arguments."""
        for argument in node.all_input_nodes:
            for value in leaves(argument.meta.get("example_value")):
                self.resized[id(value)] = value

    def check(self, dim: ToDim) -> None:
        """Compare the calls that were noted; ``dim`` gives a symbolic size as the core's.

        :raises CaptureError: naming the first call that returns something else.
        """
        for call, seen in self.noted:
            _check_parts(call, seen)
            found = next(self._differences(call, seen, dim), None)
            if found is not None:
                what, mine, other = found
                raise CaptureError(
                    f"{call.symbol} returns another {what} than Python saw: {mine}, not {other}",
                    source=call.source,
                )

    def _differences(self, call: BoundSymbol, seen: Any, dim: ToDim) -> Iterator[Fact]:
        mine = list(leaves(call.outputs))
        theirs = list(leaves(convert.to_core_tree(seen, lambda leaf: leaf)))
        if len(mine) != len(theirs):
            yield "number of values", len(mine), len(theirs)
            return
        for made, value in zip(mine, theirs, strict=True):
            for fact in self._facts(made, value, dim):
                if fact[1] != fact[2]:
                    yield fact
            lost = isinstance(value, torch.Tensor) and value.requires_grad > made.requires_grad
            if call.on_subclass and lost:  # it looks into one that holds what requires gradients
                yield "requires_grad", False, True

    def _facts(self, made: Any, value: Any, dim: ToDim) -> Iterator[Fact]:
        """Pairs of what should be equal, each with what they say."""
        if isinstance(made, TensorProxy) and isinstance(value, torch.Tensor):
            other = convert.tensor_proxy(made.name, value, dim)
            yield from _kinds(made, other)
            if id(value) not in self.resized:
                yield "shape", _sizes(made.shape), _sizes(other.shape)
                yield "strides", _strides(made), _strides(other)
        elif isinstance(made, TensorProxy) or isinstance(value, torch.Tensor):
            yield "kind of value", type(made).__name__, type(value).__name__
        elif not is_symbolic(value):
            number = made.hint if isinstance(made, NumberProxy) else made
            if isinstance(number, int) and isinstance(value, int):
                yield "number", number, value


def check_assumed(sizes: Sizes, graph: torch.fx.Graph) -> None:
    """See that nothing took the place of a number that depends on data, by the program's word.

    PyTorch believes an assertion that such a number is a certain one as soon as it is made, and
    then knows the number only as that: no program could test it any more.

    :raises CaptureError: if something did.
    """
    for text in sizes.taken_for_true():
        asserts = graph.find_nodes(op="call_function", target=ASSERTED_NUMBER)
        raise CaptureError(
            f"the program asserts which number one that depends on data is: {text}",
            source=next(filter(None, map(node_source, asserts)), None),
        )


def _check_parts(call: BoundSymbol, seen: Any) -> None:
    """See that autograd knows what ``call`` returns to be made of what it holds.

    It does not where a function that is no operator puts tensors that require gradients into one of
    a subclass: who looks into that has gradients that operators on it do not have. Of a class that
    is called tj-autograd knows it.

    :raises CaptureError: if it does not.
    """
    for value in leaves(seen):
        if not isinstance(value, torch.Tensor) or not is_wrapper(value):
            continue
        held = any(part.requires_grad for part in dense_tensors(value))
        # PyTorch refuses to name the node of some views, whose parts never require gradients.
        if held and value.grad_fn is None and not is_wrapper_class(resolve(call.symbol)):
            raise CaptureError(
                f"{call.symbol} returns a tensor subclass made of tensors that require gradients",
                source=call.source,
            )


def _kinds(made: TensorProxy, other: TensorProxy) -> Iterator[Fact]:
    yield "type", made.subclass and made.subclass.type, other.subclass and other.subclass.type
    yield "data type", made.dtype.name, other.dtype.name
    yield "device", str(made.device), str(other.device)
    yield "layout", made.layout, other.layout


def _sizes(dims: tuple[Dim, ...]) -> tuple[int | None, ...]:
    """Sizes in the captured call; those that depend on data have none."""
    return tuple(d if isinstance(d, int) else d.hint for d in dims)


def _strides(proxy: TensorProxy) -> tuple[int | None, ...]:
    """The strides that mean something: not of a single element, and not where there is none.

    PyTorch's operators on fake tensors, and their decompositions, choose the others as they like.
    """
    sizes = _sizes(proxy.shape)
    if 0 in sizes or proxy.layout != "strided":
        return ()
    pairs = zip(sizes, _sizes(proxy.strides), strict=True)
    return tuple(0 if size == 1 else stride for size, stride in pairs)
