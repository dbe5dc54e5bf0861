"""Frontend ``fx``, for a ``torch.fx.GraphModule`` or a ``torch.export.ExportedProgram``.

PyTorch's generated ``forward`` still binds the arguments and builds the result. Between them, one
call of a function that checks guards and runs a program takes the place of the graph's nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tj_core.extend import (
    CaptureError,
    Compilation,
    Entry,
    Jitted,
    Namer,
    PassError,
    Proxy,
    TjError,
)
from tj_core.internal import add_note

from tj_torch.capture.autocast_notes import check_of
from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.fx.importer import GraphImporter, is_recompiled
from tj_torch.dispatch.compiler import GraphCompiler, check_handlers
from tj_torch.dispatch.dispatcher import MISSED, Dispatcher, Made
from tj_torch.dispatch.dynamo import DynamoPrograms
from tj_torch.dispatch.module import calling
from tj_torch.guards.flags import guard_flags
from tj_torch.guards.inputs import Inputs, OpenProgramError
from tj_torch.guards.members import guard_members
from tj_torch.guards.modules import GLOBAL_HOOKS, forwards, guard_global_hooks, hooks_of
from tj_torch.ops.settings.flags import FLAGS, flags_of
from tj_torch.torch_private.runtime import pytree
from tj_torch.torch_private.switches import UNREAD, Stances

__all__ = ["FxPrograms", "graph_module", "is_exported"]

Row = Callable[..., "tuple[Any, ...] | None"]
"""Function from the placeholders' values to the graph's outputs; None if a guard fails."""


def is_exported(program: Any) -> bool:
    """Test for a ``torch.export.ExportedProgram``."""
    return isinstance(program, torch.export.ExportedProgram)


def graph_module(program: Any) -> torch.fx.GraphModule:
    """GraphModule of ``program``: itself, or ``module()`` of an ExportedProgram.

    :raises TjError: for any other object.
    """
    if is_exported(program):
        module: torch.fx.GraphModule = program.module()
        return module
    if isinstance(program, torch.fx.GraphModule):
        return program
    raise TjError(
        f"frontend 'fx' takes a GraphModule or an ExportedProgram, not {type(program).__name__}",
        hint="torch.fx.symbolic_trace(...) or torch.export.export(...) makes one; "
        "tj.jit without frontend= takes any function or module",
    )


class _Elsewhere(Exception):
    """Leave PyTorch's generated code, and have ``run`` execute the whole call instead."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run


@dataclass(slots=True)
class _Call:
    """A call that no row has answered: values of the placeholders, and the rows ``tried``."""

    values: tuple[Any, ...]
    tried: tuple[Row, ...]

    @property
    def frame(self) -> dict[str, Any]:
        return {}

    def copied(self) -> _Call:
        return self

    def found(self, rows: tuple[Row, ...]) -> Row | None:
        # Only a run tells if the guards of a row hold, and those tried do not.
        return next((row for row in rows if row not in self.tried), None)

    def holds(self, row: Row) -> bool:
        return True

    def run(self, row: Row) -> Any:
        result = row(*self.values)
        self.tried = (*self.tried, row)
        return MISSED if result is None else result

    def instead(self, function: Callable[..., Any]) -> Any:
        raise _Elsewhere(function)


class FxPrograms:
    """Programs of a GraphModule, and the graph that they were compiled from.

    ``open`` is the dispatcher of a program that needs Dynamo's guards.
    """

    failures: tuple[type[Exception], ...] = (OpenProgramError, CaptureError, PassError)

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.rows: tuple[Row, ...] = ()
        self.stances: Stances = UNREAD
        self.stance: Any = None
        self.own_hits = 0
        self.open: Dispatcher[Any] | None = None

    @property
    def original(self) -> Callable[..., Any]:
        """The module's forward, since hooks have run before a call comes here."""
        return self.module.forward

    def publish(self, rows: tuple[Row, ...]) -> None:
        """Set the rows that the callable tries."""
        self.rows = rows

    def noting(self, row: Row, used: Callable[[], None]) -> Row:
        """The row with a call of ``used`` after its program, if the guards hold."""

        def noted(*values: Any) -> tuple[Any, ...] | None:
            found = row(*values)
            if found is not None:
                used()
            return found

        return noted

    def accept(self, known: Stances, stance: Any) -> None:
        """Let rows answer calls while ``stance`` is PyTorch's stance, which ``known`` has."""
        self.stances, self.stance = known, stance

    def hits(self) -> int:
        """Number of calls that a row has answered, here or in ``open``."""
        return self.own_hits + (self.open.hits() if self.open else 0)

    def traced(self, jitted: Jitted) -> Callable[..., Any]:
        """The module's forward."""
        return self.module.forward

    def outside(self, dispatcher: Dispatcher[Row]) -> None:
        """None: each call is compiled for."""
        dispatcher.compiler.settle()

    def given(self, call: _Call) -> tuple[()]:
        """Nothing: a graph on tensor subclasses, whose handlers may write, is no open program."""
        return ()

    # ------------------------------------------------------------------ the graph

    def renew(self, dispatcher: Dispatcher[Row]) -> None:
        """Drop all entries and read the module's graph again.

        ``code`` is set last: if this is interrupted, the next call does it again.
        """
        self.code: Any = None
        code = type(self.module).forward
        dispatcher.entries.clear()
        dispatcher.elsewhere = None
        self.graph = torch.fx.Graph()
        self.graph.output(self.graph.graph_copy(self.module.graph, {}))
        # `graph_copy` leaves it out; it has the names and the tree of the arguments (pytree).
        self.graph._codegen = self.module.graph._codegen
        self.outputs = tuple(dict.fromkeys(_nodes(self._result)))
        self.forward = self._shell(dispatcher)
        self.overridden = "forward" in vars(self.module)
        if self.overridden or not is_recompiled(self.module):
            reason = "the graph is not what its forward runs: call recompile() after editing it"
            dispatcher.entries.fall_back(reason, None)
            dispatcher.elsewhere = self.module
        self.code = code

    @property
    def _result(self) -> Any:
        return next(iter(reversed(self.graph.nodes))).args[0]

    def _shell(self, dispatcher: Dispatcher[Row]) -> Callable[..., Any]:
        """The module's ``forward`` with one call of `_program` for the graph's nodes."""
        shell = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self.graph.find_nodes(op="placeholder"):
            copies[node] = shell.node_copy(node, lambda n: copies[n])
        self.inputs = tuple(copies)
        flat = shell.call_function(_program(self, dispatcher), tuple(copies.values()))
        items = {
            n: shell.call_function(operator.getitem, (flat, i)) for i, n in enumerate(self.outputs)
        }
        shell.output(torch.fx.map_arg(self._result, lambda n: items[n]))
        shell._codegen = self.graph._codegen
        return type(torch.fx.GraphModule(torch.nn.Module(), shell)).forward

    # ------------------------------------------------------------------ calls

    def make_callable(self, dispatcher: Dispatcher[Row]) -> Callable[..., Any]:
        """Make the callable for the user."""
        self.renew(dispatcher)
        state, module, hooked = self, self.module, _with_hooks(self)
        cls, held = type(module), vars(module)
        forward_hooks, pre_hooks, backward_hooks, backward_pre_hooks = hooks_of(module)
        every = [getattr(torch.nn.modules.module, name) for name in GLOBAL_HOOKS]
        every_hook, every_pre_hook, every_backward, every_backward_pre = every

        def call(*args: Any, **kwargs: Any) -> Any:
            # `recompile()` sets a new `forward` on the class of the module.
            if cls.forward is not state.code or ("forward" in held) is not state.overridden:
                state.renew(dispatcher)
            if dispatcher.elsewhere is not None:
                return dispatcher.elsewhere(*args, **kwargs)
            if (
                forward_hooks
                or pre_hooks
                or backward_hooks
                or backward_pre_hooks
                or every_hook
                or every_pre_hook
                or every_backward
                or every_backward_pre
            ):
                return hooked(*args, **kwargs)
            try:
                return state.forward(module, *args, **kwargs)
            except _Elsewhere as found:
                run = found.run
            return run(*args, **kwargs)  # outside of the handler: not chained

        return dynamo.inlined_as(call, calling(module))

    def unhooked(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward without the module's hooks, which the caller runs."""
        try:
            return self.forward(self.module, *args, **kwargs)
        except _Elsewhere:
            pass
        return self.module.forward(*args, **kwargs)

    # ------------------------------------------------------------------ compiling

    def compile(self, dispatcher: Dispatcher[Row], call: _Call) -> Made[Row]:
        """Compile the graph for ``call``.

        :raises Exception: one of ``failures``.
        """
        compiler, stats = dispatcher.compiler, dispatcher.jitted.stats
        taken = Inputs(self.module, [f"p{i}" for i in range(len(call.values))])
        with compiler.own("acquire", OpenProgramError):
            importer = self._imported(taken, call.values, compiler)
            outputs, finish = _outputs([importer.value(n) for n in self.outputs])
            importer.result = outputs
            acquired = importer.acquired()
        compilation = compiler.finish(acquired)
        check_handlers()
        with stats.timing("guards"), compiler.own("guards"):
            enter = self._guarded(importer, compilation, finish, dispatcher.jitted)
            printed = taken.printed()
        return Made(Entry(compilation, lambda: printed), enter, None)

    def _imported(
        self, taken: Inputs, values: tuple[Any, ...], compiler: GraphCompiler
    ) -> GraphImporter:
        session = compiler.jitted.session
        importer = GraphImporter(
            self.module,
            compiler.dialects,
            session.tags,
            Namer(session.language.names()),
            session.language,
            taken=taken,
        )
        with compiler.counting():
            importer.placeholders(dict(zip(self.inputs, values, strict=True)), taken.parameters)
            for node in self.graph.nodes:
                importer.node(node)
            importer.leave()
        return importer

    def _guarded(
        self,
        importer: GraphImporter,
        compilation: Compilation,
        finish: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None,
        jitted: Jitted,
    ) -> Row:
        guards, trace = importer.taken.guards, compilation.traces[0]
        guard_members(guards, forwards(importer.classes))
        if importer.classes:
            guard_global_hooks(guards)
        guard_flags(guards, flags_of(trace, jitted.session.tables[FLAGS]))
        run = compilation.function if finish is None else _then(compilation.function, finish)
        return importer.taken.enter(run, check_of(jitted.session.tables, trace))

    # ------------------------------------------------------------------ without capture

    def without(
        self, dispatcher: Dispatcher[Row], failure: OpenProgramError | CaptureError | PassError
    ) -> Callable[..., Any]:
        """Dynamo's programs if the graph does not show everything; else the module, also later."""
        jitted = dispatcher.jitted
        if not isinstance(failure, OpenProgramError):
            note = f"tj: while compiling {jitted.name}, at {failure.source}"
            return dispatcher.trial(
                self.module,
                self.module,
                lambda error: add_note(error, note) if failure.source is not None else None,
                lambda: dispatcher.entries.fall_back_from(failure),
            )
        if self.open is None:
            self.open = Dispatcher(jitted, dispatcher.compiler, DynamoPrograms(self.module))
            self.call_open = self.open.take_call()
            dispatcher.count_hits()
        dispatcher.elsewhere = self.call_open
        return self.call_open


def _then(run: Callable[..., Any], finish: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *tensors: finish(run(*tensors))


def _outputs(
    values: list[Any],
) -> tuple[tuple[Any, ...], Callable[[tuple[Any, ...]], tuple[Any, ...]] | None]:
    """The trace's outputs, and a function from their values to the graph's outputs.

    None instead of the function if all outputs are plain proxies.
    """
    # PyTorch's own flattening turns a torch.Size into a tuple.
    flat, spec = pytree.tree_flatten(values, is_leaf=lambda v: type(v) is torch.Size)
    outputs = tuple(v for v in flat if isinstance(v, Proxy))
    if len(outputs) == len(values) and all(isinstance(v, Proxy) for v in values):
        return outputs, None
    computed = [isinstance(v, Proxy) for v in flat]

    def finish(results: tuple[Any, ...]) -> tuple[Any, ...]:
        left = iter(results)
        leaves = [next(left) if c else v for c, v in zip(computed, flat, strict=True)]
        return tuple(pytree.tree_unflatten(leaves, spec))

    return outputs, finish


def _program(state: FxPrograms, dispatcher: Dispatcher[Row]) -> Callable[..., Any]:
    """Make the function that takes the place of the graph's nodes."""

    def tj_program(*values: Any) -> Any:
        rows = state.rows if state.stances._stance is state.stance else ()
        for enter in rows:
            found = enter(*values)
            if found is not None:
                state.own_hits += 1
                return found
        return dispatcher.miss(_Call(values, rows))

    return tj_program


def _with_hooks(state: FxPrograms) -> Callable[..., Any]:
    """``nn.Module.__call__`` of the module, hooks included, around the compiled forward."""
    cls = type(state.module)
    shim: Any = object.__new__(
        type(cls.__name__, (cls,), {"forward": staticmethod(state.unhooked)})
    )
    # The hooks are in the dict: `_call_impl` finds those that the user adds later, too.
    object.__setattr__(shim, "__dict__", state.module.__dict__)
    call: Callable[..., Any] = getattr(shim, "_call_impl", shim)
    return call


def _nodes(tree: Any) -> list[torch.fx.Node]:
    """Nodes in an output's tree, in order."""
    found: list[torch.fx.Node] = []

    def note(node: torch.fx.Node) -> torch.fx.Node:
        found.append(node)
        return node

    torch.fx.map_arg(tree, note)
    return found
