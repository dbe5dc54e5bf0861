"""Break the graph where iterators leave a program, or generators are dropped before their end.

Dynamo exhausts a generator that is returned, and returns an iterator over its items. It does not
close a generator that is dropped before its end, and ``yield from`` has no result.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tj_torch.capture.dynamo.patches import forget_handlers, replace_instruction, stop
from tj_torch.torch_private.replacement import has, replace

if TYPE_CHECKING:
    from contextlib import ExitStack
    from types import CodeType

__all__ = ["correct"]


def correct(stack: ExitStack) -> None:
    """Break the graph at returned iterators and at dropped generators with clean-up code.

    Give ``yield from`` the value that a generator returns.
    """
    _leave_generators(stack)
    if "SEND" in dis.opmap:  # in Python 3.10 another instruction, which Dynamo has right
        replace_instruction(stack, "SEND", _keep_result)
    _leave_iterators_of_lists(stack)
    _iterate_backwards(stack)


def _leave_generators(stack: ExitStack) -> None:
    from tj_torch.torch_private.dynamo import LocalGeneratorObjectVariable, OutputGraph

    def leaving(original: Callable[..., Any]) -> Callable[..., Any]:
        def reconstruct(self: Any, codegen: Any) -> None:
            # Dynamo runs it to its end here (`unpack_iterable`), before the caller asks for any.
            stop(f"the generator {self.code.co_name} is used after this")

        return reconstruct

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, code: CodeType, *args: Any, **kwargs: Any) -> None:
            original(self, code, *args, **kwargs)
            if _cleans_up(code):
                open_ones.append(self)

        return init

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_subgraph(self: Any, *args: Any, **kwargs: Any) -> Any:
            for generator in open_ones:
                # Python closes it when it is dropped, and runs its `finally`; Dynamo just forgets
                # it.
                if not _has_ended(generator.inline_tracer):
                    stop(f"the generator {generator.code.co_name} is left before its end")
            return original(self, *args, **kwargs)

        return compile_subgraph

    open_ones: list[Any] = []
    replace(stack, LocalGeneratorObjectVariable, "reconstruct", leaving)
    replace(stack, LocalGeneratorObjectVariable, "__init__", made)
    replace(stack, OutputGraph, "compile_subgraph", ending)


def _keep_result(original: Callable[..., Any]) -> Callable[..., Any]:
    """Put what an exhausted iterator returned on the stack, where Dynamo puts None."""
    from tj_torch.torch_private.dynamo import user_defined

    def instruction(self: Any, inst: Any) -> None:
        following = self.instruction_pointer
        receiver = self.stack[-2]
        tracer: Any = getattr(receiver, "inline_tracer", None)
        ended = getattr(tracer, "generator_exhausted", False)
        original(self, inst)
        # SEND jumps at the end of the iterator.
        if self.instruction_pointer == following or not self.stack[-1].is_constant_none():
            return
        if hasattr(tracer, "generator_exhausted"):  # later versions of Dynamo have the value
            # One that had ended before returns None.
            self.stack[-1] = self.stack[-1] if ended else tracer.symbolic_result
        elif isinstance(receiver, user_defined.UserDefinedObjectVariable):
            stop(f"the result of `yield from` a {receiver.python_type_name()}")

    return instruction


def _has_ended(tracer: Any) -> bool:
    """Test for a generator whose body has returned or raised."""
    if hasattr(tracer, "generator_exhausted"):
        return bool(tracer.generator_exhausted)
    return tracer.frame_state.name in ("FRAME_COMPLETED", "FRAME_CLEARED")  # from 2.14 on


def _cleans_up(code: CodeType) -> bool:
    """Test for a generator with a handler that runs when it is closed."""
    found = list(dis.get_instructions(code))
    # Python 3.10 marks no instruction as the start of a handler; SETUP_FINALLY refers to it.
    begun = {i.argval for i in found if i.opname == "SETUP_FINALLY"}
    starts = [n for n, i in enumerate(found) if i.offset in begun]
    starts += [n + 1 for n, i in enumerate(found) if i.opname == "PUSH_EXC_INFO"]
    return any(i.opname == "SETUP_WITH" for i in found) or any(
        _sees_closing(found, start) for start in starts
    )


def _sees_closing(found: Sequence[dis.Instruction], start: int) -> bool:
    """Test if the handler at ``start`` runs for GeneratorExit.

    It does not if its first clause names another error; later clauses are not examined.
    """
    first = start + (found[start].opname == "DUP_TOP")
    checks = found[first + 1].opname in ("CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH")
    if not checks or found[first].opname != "LOAD_GLOBAL":
        return True
    kind = vars(builtins).get(found[first].argval)
    return not isinstance(kind, type) or issubclass(GeneratorExit, kind)


def _leave_iterators_of_lists(stack: ExitStack) -> None:
    """Break the graph at a returned list iterator, which Dynamo makes a tuple iterator.

    Allowed for the iterator of a loop with a graph break, which the program cannot observe.
    """
    from tj_torch.torch_private.dynamo import (
        ListIteratorVariable,
        OutputGraph,
        TupleIteratorVariable,
    )

    hidden: list[Any] = []

    def ending(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_subgraph(self: Any, tx: Any, reason: Any, *args: Any, **kwargs: Any) -> Any:
            hidden[:] = _in_loops(tx) if reason.graph_break else []
            return original(self, tx, reason, *args, **kwargs)

        return compile_subgraph

    def leaving(original: Callable[..., Any]) -> Callable[..., Any]:
        def reconstruct(self: Any, codegen: Any) -> None:
            other = not isinstance(self, TupleIteratorVariable)  # over a deque, from 2.14 on
            if other and all(v is not self for v in hidden):
                stop("an iterator is used after this")
            original(self, codegen)

        return reconstruct

    replace(stack, OutputGraph, "compile_subgraph", ending)
    # From 2.15 on, a base class has the method, for iterators over deques, too.
    bases = (c for c in ListIteratorVariable.__mro__ if has(c, "reconstruct"))
    base = next(bases, ListIteratorVariable)
    near = base.__module__ == ListIteratorVariable.__module__
    replace(stack, base if near else ListIteratorVariable, "reconstruct", leaving, inherited=True)


def _iterate_backwards(stack: ExitStack) -> None:
    """Make ``reversed(...)`` an iterator, where it is a tuple up to 2.11.

    Later that of a tuple is an object of a class of Dynamo's own.
    """
    from tj_torch.torch_private.dynamo import (
        BuiltinVariable,
        ListIteratorVariable,
        TupleVariable,
        ValueMutationNew,
    )

    def reversing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_reversed(self: Any, tx: Any, *args: Any) -> Any:
            given = args[0].realize()
            if type(given) is TupleVariable:
                found = TupleVariable(given.items[::-1])
            else:
                found = original(self, tx, *args)
            if type(found) is TupleVariable:
                return ListIteratorVariable(found.items, mutation_type=ValueMutationNew())
            return found

        return call_reversed

    forget_handlers(stack, reversed)
    replace(stack, BuiltinVariable, "call_reversed", reversing)


def _in_loops(tx: Any) -> list[Any]:
    """Values on the stacks of a frame and its callers, where iterators of loops are."""
    found: list[Any] = []
    while tx is not None:
        found += tx.stack
        tx = getattr(tx, "parent", None)
    return found
