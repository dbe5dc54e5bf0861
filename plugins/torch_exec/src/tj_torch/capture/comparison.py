"""Compare metadata of expansions with those of capture.

The user's Python code branched on metadata of the capture, and the expansion is what runs. Both
come from fake tensors under the same context, but may differ: where autocast has cached a cast to
another data type, the program may have read one data type and another would run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from tj_core.extend import BoundSymbol, CaptureError, Dim, NumberProxy, TensorProxy, leaves

from tj_torch.capture.sources import first_source
from tj_torch.ops.naming.resolve import resolve
from tj_torch.ops.sizes.shape_env import is_symbolic
from tj_torch.ops.values import convert
from tj_torch.runtime.subclasses import dense_tensors, is_wrapper, is_wrapper_class
from tj_torch.torch_private.ops import ASSERTED_NUMBER

if TYPE_CHECKING:
    from tj_torch.ops.sizes.program import Sizes

__all__ = ["Comparison", "check_assumed", "check_part"]

ToDim = Callable[[Any], Dim]
Fact = tuple[str, object, object]


@dataclass(slots=True)
class Comparison:
    """Expanded calls of one program, each with its result at capture.

    Fake tensors keep no history: for a tensor that a later call resizes in place, capture has only
    the last shape. So calls are noted first, and compared when all are known. ``resized`` are the
    fakes that a call may have resized, by id, and ``written`` those that one may have written,
    which may require a gradient since then.
    """

    noted: list[tuple[BoundSymbol, torch.fx.Node, Any]] = field(default_factory=list)
    resized: dict[int, Any] = field(default_factory=dict)
    written: dict[int, Any] = field(default_factory=dict)

    def note(self, call: BoundSymbol, node: torch.fx.Node) -> None:
        """Note ``call``, the expansion of ``node``, for comparison, if ``node`` has metadata."""
        if "example_value" in node.meta:
            self.noted.append((call, node, node.meta["example_value"]))
        if call.effects.mutates:
            self.written.update((id(value), value) for value in _given(node))
        if call.effects.rebinds:
            self.resizes(node)

    def resizes(self, node: torch.fx.Node) -> None:
        """Note that ``node`` may change the shape of its arguments."""
        self.resized.update((id(value), value) for value in _given(node))

    def check(self, dim: ToDim) -> None:
        """Compare the noted calls; ``dim`` converts a symbolic size to the core's form.

        :raises CaptureError: naming the first call that differs, and the two values.
        """
        for call, node, seen in self.noted:
            _check_parts(call, seen)
            found = next(self._differences(call, node, seen, dim), None)
            if found is not None:
                what, mine, other = found
                raise CaptureError(
                    f"{call.symbol} returns another {what} than Python saw: {mine}, not {other}",
                    source=call.source,
                )

    def _differences(
        self, call: BoundSymbol, node: torch.fx.Node, seen: Any, dim: ToDim
    ) -> Iterator[Fact]:
        mine = list(leaves(call.outputs))
        theirs = list(leaves(convert.to_core_tree(seen, lambda leaf: leaf)))
        if len(mine) != len(theirs):
            yield "number of values", len(mine), len(theirs)
            return
        for made, value in zip(mine, theirs, strict=True):
            for fact in self._facts(made, value, dim):
                if fact[1] != fact[2]:
                    yield fact
            # `True > False`: captured with a gradient, and expanded without.
            lost = isinstance(value, torch.Tensor) and value.requires_grad > made.requires_grad
            # It reads a subclass whose inner tensors require grad, unless a later write told it to.
            if call.on_subclass and lost and (id(value) not in self.written or _reads_parts(node)):
                yield "requires_grad", False, True

    def _facts(self, made: Any, value: Any, dim: ToDim) -> Iterator[Fact]:
        """Names of facts, each with its two values, which should be equal."""
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


def _given(node: torch.fx.Node) -> Iterator[Any]:
    """Values that ``node`` is given, as capture has them."""
    for argument in node.all_input_nodes:
        yield from leaves(argument.meta.get("example_value"))


def _reads_parts(node: torch.fx.Node) -> bool:
    """Test for an argument that is a subclass whose inner tensors require a gradient."""
    tensors = (v for v in _given(node) if isinstance(v, torch.Tensor) and is_wrapper(v))
    return any(part.requires_grad for v in tensors for part in dense_tensors(v))


def check_assumed(sizes: Sizes, graph: torch.fx.Graph) -> None:
    """Check that PyTorch replaced no unbacked symbol because of an assertion in the program.

    Once the program asserts that a data-dependent number equals another, PyTorch's symbolic shapes
    may substitute it everywhere, and the trace could no longer test the assertion.

    :raises CaptureError: if it has replaced one.
    """
    for text in sizes.taken_for_true():
        raise _asserted(text, graph)


def check_part(graph: torch.fx.Graph) -> None:
    """Check that a part of a program asserts no equality of a number that depends on data.

    Eager may accept another number, as it broadcasts a single row, and a part of a program cannot
    be run again.

    :raises CaptureError: if it does.
    """
    for node in graph.find_nodes(op="call_function", target=ASSERTED_NUMBER):
        condition = node.args[0]
        if isinstance(condition, torch.fx.Node) and condition.target is operator.eq:
            raise _asserted(str(node.args[1]), graph)


def _asserted(text: str, graph: torch.fx.Graph) -> CaptureError:
    asserts = graph.find_nodes(op="call_function", target=ASSERTED_NUMBER)
    return CaptureError(
        f"the program asserts which number one that depends on data is: {text}",
        source=first_source(asserts),
    )


def _check_parts(call: BoundSymbol, seen: Any) -> None:
    """Check that a tensor subclass that ``call`` returns has the autograd history of its parts.

    The history is missing if a function that is no operator wraps tensors that require grad: then
    reading the inner tensors has gradients, and operators on the wrapper have none. A call of the
    class itself is fine, which tj-autograd knows.

    :raises CaptureError: if the history is missing.
    """
    for value in leaves(seen):
        if not isinstance(value, torch.Tensor) or not is_wrapper(value):
            continue
        held = any(part.requires_grad for part in dense_tensors(value))
        # `grad_fn` raises for some views, whose parts never require grad: so it is read last.
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
    """Sizes in the captured call; None for data-dependent ones."""
    return tuple(d if isinstance(d, int) else d.hint for d in dims)


def _strides(proxy: TensorProxy) -> tuple[int | None, ...]:
    """Strides that matter; () for a tensor without elements, 0 for a dimension of size 1.

    Fake kernels and decompositions of PyTorch differ in the others.
    """
    sizes = _sizes(proxy.shape)
    if 0 in sizes or proxy.layout != "strided":
        return ()
    pairs = zip(sizes, _sizes(proxy.strides), strict=True)
    return tuple(0 if size == 1 else stride for size, stride in pairs)
