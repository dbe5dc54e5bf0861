"""Frontend ``fx``, for a ``torch.fx.GraphModule`` or a ``torch.export.ExportedProgram``.

PyTorch's generated ``forward`` still binds the arguments and builds the result. Between them, one
call of a function that checks guards and runs a program takes the place of the graph's nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from tj_core.extend import (
    CaptureError,
    Compilation,
    Entry,
    Guard,
    Jitted,
    Namer,
    PassError,
    Proxy,
    TjError,
    add_note,
)

from tj_torch.capture.ambient import ambient_mode, interpreting
from tj_torch.capture.autocast_notes import check_of
from tj_torch.capture.dynamo import adapter as dynamo
from tj_torch.capture.dynamo.guards import GLOBAL_HOOKS, extra_guards
from tj_torch.capture.fx.importer import GraphImporter, is_recompiled
from tj_torch.capture.fx.inputs import Inputs, OpenProgramError, hooks_of
from tj_torch.dispatch.compiler import GraphCompiler, check_handlers
from tj_torch.dispatch.dispatcher import Dispatcher
from tj_torch.dispatch.entries import Entries
from tj_torch.dispatch.module import calling
from tj_torch.ops.flags import FLAGS, flags_of
from tj_torch.torch_private.runtime import pytree

__all__ = ["FxDispatcher", "graph_module", "is_exported"]

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


class FxDispatcher:
    """State of one jitted GraphModule: its entries, and the graph they were compiled from.

    ``elsewhere`` runs all calls where the graph cannot be compiled; ``open`` is the dispatcher of
    a program whose guards Dynamo has to make.
    """

    def __init__(
        self, module: torch.fx.GraphModule, jitted: Jitted, compiler: GraphCompiler
    ) -> None:
        self.module = module
        self.jitted = jitted
        self.compiler = compiler
        self.rows: tuple[Row, ...] = ()
        self.own_hits = 0
        self.entries: Entries[Row] = Entries(jitted, self._publish)
        self.elsewhere: Callable[..., Any] | None = None
        self.open: Dispatcher | None = None
        self.renew()
        self.hooked = _with_hooks(self)
        jitted.refresh = self._count
        self.call = dynamo.inlined_as(self._call(), calling(module))

    def take_call(self) -> Callable[..., Any]:
        """Callable for the user."""
        return self.call

    def _publish(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows

    def _count(self) -> None:
        self.jitted.stats.hits = self.own_hits + (self.open.hits() if self.open else 0)

    def renew(self) -> None:
        """Drop all entries and read the module's graph again.

        ``code`` is set last: if this is interrupted, the next call does it again.
        """
        self.code: Any = None
        code = type(self.module).forward
        self.entries.clear()
        self.elsewhere = None
        self.graph = torch.fx.Graph()
        self.graph.output(self.graph.graph_copy(self.module.graph, {}))
        self.graph._codegen = self.module.graph._codegen
        self.outputs = tuple(dict.fromkeys(_nodes(self._result)))
        self.forward = self._shell()
        self.overridden = "forward" in vars(self.module)
        if self.overridden or not is_recompiled(self.module):
            reason = "the graph is not what its forward runs: call recompile() after editing it"
            self.entries.fall_back(reason, None)
            self.elsewhere = self.module
        self.code = code

    @property
    def _result(self) -> Any:
        return next(iter(reversed(self.graph.nodes))).args[0]

    def _shell(self) -> Callable[..., Any]:
        """The module's ``forward`` with one call of `_dispatching` for the graph's nodes."""
        shell = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self.graph.find_nodes(op="placeholder"):
            copies[node] = shell.node_copy(node, lambda n: copies[n])
        self.inputs = tuple(copies)
        flat = shell.call_function(_dispatching(self), tuple(copies.values()))
        items = {
            n: shell.call_function(operator.getitem, (flat, i)) for i, n in enumerate(self.outputs)
        }
        shell.output(torch.fx.map_arg(self._result, lambda n: items[n]))
        shell._codegen = self.graph._codegen
        return type(torch.fx.GraphModule(torch.nn.Module(), shell)).forward

    # ------------------------------------------------------------------ calls

    def _call(self) -> Callable[..., Any]:
        """Make the callable for the user."""
        state, module = self, self.module
        cls, held = type(module), vars(module)
        forward_hooks, pre_hooks, backward_hooks, backward_pre_hooks = hooks_of(module)
        every = [getattr(torch.nn.modules.module, name) for name in GLOBAL_HOOKS]
        every_hook, every_pre_hook, every_backward, every_backward_pre = every

        def call(*args: Any, **kwargs: Any) -> Any:
            if cls.forward is not state.code or ("forward" in held) is not state.overridden:
                state.renew()
            if state.elsewhere is not None:
                return state.elsewhere(*args, **kwargs)
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
                return state.hooked(*args, **kwargs)
            try:
                return state.forward(module, *args, **kwargs)
            except _Elsewhere as found:
                run = found.run
            return run(*args, **kwargs)  # outside of the handler: not chained

        return call

    def unhooked(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward without the module's hooks, which the caller runs."""
        try:
            return self.forward(self.module, *args, **kwargs)
        except _Elsewhere:
            pass
        return self.module.forward(*args, **kwargs)

    def miss(self, values: tuple[Any, ...], tried: tuple[Row, ...]) -> tuple[Any, ...]:
        """Compile for these values of the placeholders and run, or raise `_Elsewhere`."""
        mode = ambient_mode() or interpreting(values)
        if mode is not None:
            self.entries.fall_back(f"called under {mode}; the original function runs", None)
            raise _Elsewhere(self.module.forward)
        self.compiler.settle()
        while (found := self._newest(values, tried)) is None:
            tried = (*tried, *self.rows)
        return found

    def _newest(self, values: tuple[Any, ...], tried: tuple[Row, ...]) -> tuple[Any, ...] | None:
        """Run a row that another thread added, else compile one; None if no new row holds."""
        try:
            with dynamo.compiling(), self.jitted.lock:
                rows = [row for row in self.rows if row not in tried]
                compiled = not rows
                if compiled:
                    rows = [self._compile(values)]
        except OpenProgramError:
            if self.open is None:
                self.open = Dispatcher(self.module, self.jitted, self.compiler)
                self.call_open = self.open.take_call()
                self.jitted.refresh = self._count
            self.elsewhere = self.call_open
            raise _Elsewhere(self.elsewhere) from None
        except (CaptureError, PassError) as error:
            raise _Elsewhere(self._without_capture(error)) from None
        found = next((out for row in rows if (out := row(*values)) is not None), None)
        if found is None and compiled:
            reason = "the guards of a new entry do not hold for its own arguments"
            self.entries.fall_back(reason, None)
            raise _Elsewhere(self.module.forward)
        return found

    def _without_capture(self, failure: CaptureError | PassError) -> Callable[..., Any]:
        """Callable that runs the original module; so do all later calls, if it does not raise."""

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                result = self.module(*args, **kwargs)
            except Exception as error:
                if failure.source is not None:
                    where = f"while compiling {self.jitted.name}, at {failure.source}"
                    add_note(error, f"tj: {where}")
                raise
            self.entries.fall_back_from(failure)
            self.elsewhere = self.module
            return result

        return run

    # ------------------------------------------------------------------ compiling

    def _compile(self, values: tuple[Any, ...]) -> Row:
        names = [f"p{i}" for i in range(len(values))]
        taken = Inputs(self.module, names)
        with self.compiler.own("acquire", OpenProgramError, _Elsewhere):
            importer = self._imported(taken, values)
            outputs, finish = _outputs([importer.value(n) for n in self.outputs])
            importer.result = outputs
            acquired = importer.acquired()
        compilation = self.compiler.finish(acquired)
        check_handlers()
        with self.jitted.stats.timing("guards"), self.compiler.own("guards"):
            enter, texts = self._guarded(taken, importer, compilation, finish)
        entry = Entry(compilation, lambda: tuple(map(Guard, texts)))
        self.entries.add(entry, enter)
        return enter

    def _imported(self, taken: Inputs, values: tuple[Any, ...]) -> GraphImporter:
        session = self.jitted.session
        importer = GraphImporter(
            self.module,
            self.compiler.dialects,
            session.tags,
            Namer(session.language.names()),
            session.language,
            taken=taken,
        )
        with self.compiler.counting():
            importer.placeholders(dict(zip(self.inputs, values, strict=True)), taken.parameters)
            for node in self.graph.nodes:
                importer.node(node)
            importer.leave()
        return importer

    def _guarded(
        self,
        taken: Inputs,
        importer: GraphImporter,
        compilation: Compilation,
        finish: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None,
    ) -> tuple[Row, tuple[str, ...]]:
        flags = flags_of(compilation.traces[0], self.jitted.session.tables[FLAGS])
        extra, texts = extra_guards(importer.classes, flags)
        run = compilation.function
        if finish is not None:
            run = _then(run, finish)
        leaves = check_of(self.jitted.session.tables, compilation.traces[0])
        if leaves is not None:
            run = _where(leaves, run)
        return taken.enter(run, extra), (*taken.guard_texts(), *texts)


def _then(run: Callable[..., Any], finish: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *tensors: finish(run(*tensors))


def _where(check: Callable[[tuple[Any, ...]], bool], run: Callable[..., tuple[Any, ...]]) -> Row:
    return lambda *tensors: run(*tensors) if check(tensors) else None


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


def _dispatching(state: FxDispatcher) -> Callable[..., Any]:
    """Make the function that takes the place of the graph's nodes."""

    def tj_program(*values: Any) -> tuple[Any, ...]:
        rows = state.rows
        for enter in rows:
            found = enter(*values)
            if found is not None:
                state.own_hits += 1
                return found
        return state.miss(values, rows)

    return tj_program


def _with_hooks(state: FxDispatcher) -> Callable[..., Any]:
    """``nn.Module.__call__`` of the module, hooks included, around the compiled forward."""
    cls = type(state.module)
    shim: Any = object.__new__(
        type(cls.__name__, (cls,), {"forward": staticmethod(state.unhooked)})
    )
    object.__setattr__(shim, "__dict__", state.module.__dict__)
    call: Callable[..., Any] = shim._call_impl
    return call


def _nodes(tree: Any) -> list[torch.fx.Node]:
    """Nodes in an output's tree, in order."""
    found: list[torch.fx.Node] = []

    def note(node: torch.fx.Node) -> torch.fx.Node:
        found.append(node)
        return node

    torch.fx.map_arg(tree, note)
    return found
