"""Compiles that are interrupted at any point leave a session as if they had never begun.

Functions between a call and its program are replaced by wrappers that count, and raise at the n-th
call or return. The default run takes a spread of n, ``TJ_FULL=1`` takes all.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import tj_core as tj
import torch
from tj_conformance.sampling import FULL
from tj_core.extend import Claim, Executor, RuleTable, Session, Stage, Transform, hookimpl
from torch import nn

pytestmark = pytest.mark.sampled(16)

SPREAD = 3
"""Number of points per scenario and kind of exception in the default run."""

# Where an interrupt can come, as dotted names. A class's methods are replaced on the class.
POINTS = [
    "torch._dynamo.convert_frame.fullgraph_capture",
    "torch._dynamo.symbolic_convert.InstructionTranslatorBase.step",
    "torch._dynamo.output_graph.OutputGraph.compile_and_call_fx_graph",
    "torch._dynamo.guards.CheckFunctionManager.__init__",
    "torch._subclasses.fake_tensor.FakeTensorMode.__torch_dispatch__",
    "tj_torch.capture.dynamo.adapter.capture",
    "tj_torch.capture.dynamo.adapter._built_guards",
    "tj_torch.capture.dynamo.adapter.Capture.build",
    "tj_torch.dispatch.dispatcher.Dispatcher._compile",
    "tj_torch.dispatch.dynamo.guard_members",
    "tj_torch.dispatch.dynamo.module_types",
    "tj_torch.dispatch.compiler.GraphCompiler.compile",
    "tj_torch.dispatch.compiler.GraphCompiler.backend",
    "tj_torch.dispatch.compiler.GraphCompiler.finish",
    "tj_torch.capture.acquire.input_names",
    "tj_torch.capture.acquire.node_source",
    "tj_torch.capture.acquire.bind_outputs",
    "tj_torch.capture.acquire.Importer.node",
    "tj_torch.capture.acquire.Importer.expanded",
    "tj_torch.capture.acquire.Importer.place",
    "tj_torch.capture.acquire.Importer.acquired",
    "tj_torch.ops.context.tracker.ContextTracker.handles",
    "tj_torch.dispatch.fx.FxPrograms.compile",
    "tj_torch.dispatch.fx.FxPrograms._imported",
    "tj_torch.dispatch.fx.FxPrograms._guarded",
    "tj_torch.guards.inputs.Inputs.enter",
    "tj_torch.capture.fx.importer.GraphImporter.node",
    "tj_torch.capture.fx.importer.GraphImporter.trace_leaf",
    "tj_torch.capture.fakes.FakeRuns.actual",
    "tj_torch.capture.fx.leaves.LeafRecorder.__torch_function__",
    "tj_torch.dispatch.entries.Entries.add",
    "tj_torch.dispatch.entries.Entries._refresh",
    "tj_torch.ops.naming.names.Names.symbol",
    "tj_torch.ops.service.TorchDialects.expand",
    "tj_torch.ops.service.resolve",
    "tj_torch.ops.memo.memo.Memo._keyed",
    "tj_torch.ops.memo.memo.Memo._remember",
    "tj_torch.ops.expansion.expander.Expander.expand",
    "tj_torch.ops.expansion.run.Run.expansion",
    "tj_torch.ops.expansion.run.Run.wrap",
    "tj_torch.ops.expansion.run.Run.call",
    "tj_torch.ops.expansion.run.Run.describe",
    "tj_torch.ops.expansion.run.surroundings",
    "tj_torch.ops.expansion.run.make_fake",
    "tj_torch.torch_private.ops.functionalization",
    "tj_torch.torch_private.ops.python_dispatcher",
    "tj_torch.torch_private.ops.functionalized",
    "tj_torch.torch_private.ops.unwrapped",
    "tj_torch.torch_private.ops.quiet",
    "tj_torch.ops.expansion.recorder.Recorder.__torch_dispatch__",
    "tj_torch.ops.expansion.body.BodyBuilder.build",
    "tj_core.ir.names.Namer.__call__",
    "tj_core.host.jitted.Jitted.compile",
    "tj_core.host.jitted.Jitted.add",
    "tj_core.compile.steps.Steps.step",
    "tj_core.compile.pipeline._Run.transform",
    "tj_core.compile.claims.claim",
    "tj_core.compile.pipeline.dce",
    "tj_core.compile.steps.verify",
    "tj_core.compile.claims.generate",
    "tj_core.compile.codegen.define",
    "tj_core.edit.rewrite.CallEditor.call",
]

ON_FAKES = (
    "tj_torch.ops.expansion.body.",
    "tj_torch.ops.expansion.run.Run.",
    "tj_torch.ops.expansion.run.make_fake",
    "tj_torch.ops.expansion.run.surroundings",
    "tj_torch.torch_private.ops.",
    "tj_torch.ops.expansion.recorder.",
    "tj_torch.capture.fakes.",
    "tj_torch.capture.fx.leaves.",
    "torch._subclasses.",
)
"""Points whose errors mean that a call does not run on fakes; it, or its module, stays whole."""


@dataclass
class Injector:
    """Counter of events at the points, which raises ``kind`` at event ``at``."""

    kind: type[BaseException] | None = None
    at: int = -1
    count: int = 0
    raised_at: str | None = None
    thread: int = field(default_factory=threading.get_ident)

    def event(self, where: str) -> None:
        """Count an event: a function is called, or has returned."""
        if threading.get_ident() != self.thread:
            return
        self.count += 1
        if self.kind is not None and self.count == self.at:
            self.raised_at = where
            raise self.kind("injected")

    def around(self, function: Callable[..., Any], where: str) -> Callable[..., Any]:
        """``function`` with an event before and one after it."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if where.endswith("__torch_dispatch__") and args[1].namespace == "prim":
                # PyTorch asks for a tensor's device where C++ lets no exception through: one that
                # is raised there, an interrupt too, ends the process.
                return function(*args, **kwargs)
            self.event(f"before {where}")
            result = function(*args, **kwargs)
            self.event(f"after {where}")
            return result

        return call


@contextlib.contextmanager
def injected(injector: Injector) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for point in POINTS:
            owner, name = _owner(point)
            raw = vars(owner)[name]
            wrapped = injector.around(getattr(raw, "__func__", raw), point)
            patch.setattr(owner, name, type(raw)(wrapped) if hasattr(raw, "__func__") else wrapped)
        yield


def _owner(point: str) -> tuple[Any, str]:
    parts = point.split(".")
    for i in range(len(parts) - 1, 0, -1):
        try:
            owner = __import__(".".join(parts[:i]), fromlist=["x"])
        except ImportError:
            continue
        for part in parts[i:-1]:
            owner = getattr(owner, part)
        return owner, parts[-1]
    raise AssertionError(point)


# ------------------------------------------------------------------------------- programs


def function(x):
    with torch.no_grad():
        y = x.sin() * 2
    z = tj.tag(y + x, "SAVE")
    z = z.view(-1)
    z.mul_(3)
    return z, torch.nn.functional.gelu(z)


def breaking(x):
    y = x.cos() + 1
    print(end="")
    return y * x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 2)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))).clone())


@dataclass(frozen=True)
class Scenario:
    """Function that makes a program anew, and the frontend that captures it."""

    make: Callable[[], Any]
    frontend: str = "dynamo"
    training: bool = False

    def input(self) -> torch.Tensor:
        return torch.arange(15.0).reshape(5, 3) / 10


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


SCENARIOS = {
    "function": Scenario(lambda: lambda x: function(x)),
    "module": Scenario(net, training=True),
    "break": Scenario(lambda: lambda x: breaking(x)),
    "fx": Scenario(lambda: torch.fx.symbolic_trace(function_without_context), "fx"),
    "fx module": Scenario(lambda: torch.fx.symbolic_trace(net()), "fx", training=True),
}


def function_without_context(x):
    z = torch.sin(x * 2).view(-1)
    return z, torch.nn.functional.gelu(z).sum()


class Picky:
    """Executor and transform with points in a check and in a pass."""

    tj_name = "picky"

    def __init__(self, injector: Injector) -> None:
        self.injector = injector

    @hookimpl
    def tj_executors(self):
        def takes(call):
            self.injector.event("in an executor's check")
            return True

        claims: RuleTable[Any] = RuleTable("claim")
        claims.set("torch.nn.functional.gelu", Claim(torch.nn.functional.gelu, takes))
        claims.set("aten.relu.default", Claim(torch.relu, takes))
        return (Executor("picky", claims),)

    @hookimpl
    def tj_transforms(self):
        def renew(trace, context):
            """Make each multiplication again."""
            self.injector.event("in a transform")
            return trace.replace(name=trace.name)

        return (Transform("renew", renew, Stage.ACQUIRED),)


# ------------------------------------------------------------------------------- what must hold


def ambient() -> dict[str, Any]:
    """State of the thread and the process that compiling changes, and must restore."""
    import torch._dynamo as dynamo
    from torch._dynamo import trace_rules
    from torch._dynamo.utils import get_metrics_context

    names = (None, "torch", "torch._dynamo", "torch._subclasses.fake_tensor")
    loggers = [logging.getLogger(n) for n in names]
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [torch.is_autocast_enabled(d) for d in ("cpu", "cuda")],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        # functionalization, Python dispatcher, autocast and autograd are keys among these
        "included keys": str(torch._C._dispatch_tls_local_include_set()),
        "excluded keys": str(torch._C._dispatch_tls_local_exclude_set()),
        "interpreters": torch._C._functorch.peek_interpreter_stack(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "random numbers": torch.get_rng_state().tolist(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "loggers": [(log.level, log.disabled) for log in loggers],
        "filters": list(warnings.filters),
        "dynamo's config": dynamo.config.get_config_copy(),
        "dynamo's metrics": get_metrics_context().in_progress(),
        "functions dynamo records": len(trace_rules._allowed_callable_ids.function_ids or ()),
        "eval frame": torch._C._dynamo.eval_frame.get_eval_frame_callback(),
        "tracing": torch._guards.TracingContext.try_get(),
        "compiling": torch._guards.CompileContext.try_get(),
        "is compiling": torch.compiler.is_compiling(),
        "hooks on saved tensors": torch._C._autograd._saved_tensors_hooks_is_enabled(),
    }


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def gradients(program: Any, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(out.sum(), list(program.parameters()))


def check_next_call(scenario: Scenario, program: Any, jitted: Any) -> None:
    """Check that the next call equals eager, from another thread: no lock is held."""
    found: list[Any] = []

    def work() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", tj.TjWarning)
                warnings.filterwarnings("ignore", ".*: graph break", tj.TjWarning)
                found.append(jitted(scenario.input()))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert found, "a lock is held"
    if isinstance(found[0], BaseException):
        raise found[0]
    eager = scenario.make()
    expected = eager(scenario.input())
    same(found[0], expected)
    if scenario.training:
        same(gradients(program, found[0]), gradients(eager, expected))
        same(dict(program.named_buffers()), dict(eager.named_buffers()))


def check_statistics(jitted: Any, *, plain: bool) -> None:
    """Check the statistics; ``plain``: no call went through PyTorch's hook."""
    stats, state = tj.stats(jitted), jitted.__tj__
    assert stats.entries == len(state.entries) == stats.misses
    assert (stats.evicted, stats.invalidated) == (0, 0)
    assert all(e.compilation is not None and e.compilation.program for e in state.entries)
    assert state.last is (state.entries[-1] if state.entries else None)
    if plain:
        assert stats.calls == stats.hits + stats.misses


def attempt(scenario: Scenario, injector: Injector) -> str:
    """Compile once with ``injector``, and check all invariants; return the outcome."""
    torch.compiler.reset()  # the hook keeps what it compiled with the code
    session = Session(plugins=[Picky(injector), "torch"])
    program = scenario.make()
    jitted = tj.jit(program, session=session, frontend=scenario.frontend)
    before, error, result = ambient(), None, None
    buffers = {n: b.clone() for n, b in getattr(program, "named_buffers", tuple)()}
    with warnings.catch_warnings(record=True) as caught, injected(injector):
        warnings.simplefilter("always")
        try:
            result = jitted(scenario.input())
        except BaseException as raised:
            error = raised
    after = ambient()
    if injector.kind is None:
        assert error is None
        check_statistics(jitted, plain=scenario.frontend == "dynamo")
        return "counted"
    where = injector.raised_at
    texts = [str(w.message) for w in caught]
    assert where is not None, f"the point was not reached: {error!r}, {texts}"
    outcome = _outcome(injector, error, texts)
    changed = {k: (before[k], after[k]) for k in before if before[k] != after[k]}
    assert changed == {}, where
    if error is None:  # it fell back, or did without: the result is right all the same
        same(result, scenario.make()(scenario.input()))
    elif scenario.training:
        same(dict(program.named_buffers()), buffers)  # nothing ran
    check_statistics(jitted, plain=False)
    for name, buffer in getattr(program, "named_buffers", tuple)():
        buffer.copy_(buffers[name])
    check_next_call(scenario, program, jitted)
    check_statistics(jitted, plain=False)
    if outcome != "fell back":
        assert tj.stats(jitted).entries > 0
    return outcome


def _outcome(injector: Injector, error: BaseException | None, texts: list[str]) -> str:
    where = str(injector.raised_at)
    if injector.kind is KeyboardInterrupt:
        assert type(error) is KeyboardInterrupt, (where, error)
        return "interrupted"
    if error is not None:
        assert isinstance(error, RuntimeError | tj.TjError), (where, error)
        assert "injected" in str(error), (where, error)
        return "raised"
    if any("injected" in text for text in texts):
        return "fell back"
    assert where.split()[1].startswith(ON_FAKES), f"swallowed: {where}"
    return "stayed whole"


@functools.cache
def events(name: str) -> int:
    """Number of events in a compile of the scenario."""
    attempt(SCENARIOS[name], Injector())
    injector = Injector()
    attempt(SCENARIOS[name], injector)
    return injector.count


def spread(name: str, offset: int) -> list[int]:
    total = events(name)
    if FULL:
        return list(range(1, total + 1))
    return [1 + (total * (2 * i + offset)) // (2 * SPREAD) for i in range(SPREAD)]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_interrupted_compile_leaves_nothing_behind(name: str, kind: type[BaseException]) -> None:
    for at in spread(name, offset=int(kind is RuntimeError)):
        attempt(SCENARIOS[name], Injector(kind, at))


# ------------------------------------------------------------------------------- other moments


def interrupted(jitted: Any, x: torch.Tensor, point: str) -> None:
    """Call with an interrupt at the first call of ``point``."""
    owner, name = _owner(point)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, Injector(KeyboardInterrupt, 1).around(vars(owner)[name], point))
        with pytest.raises(KeyboardInterrupt):
            jitted(x)


def test_an_interrupted_specialisation_keeps_the_others() -> None:
    jitted = tj.jit(lambda x: x * 2, dynamic=False)
    x = torch.arange(6.0)
    same(jitted(x), x * 2)
    for point in (
        "tj_core.compile.claims.generate",
        "tj_torch.dispatch.entries.Entries._refresh",
    ):
        interrupted(jitted, x[:3], point)
        assert (tj.stats(jitted).entries, tj.stats(jitted).misses) == (1, 1)
        same(jitted(x), x * 2)
    assert tj.stats(jitted).hits == 2
    same(jitted(x[:3]), x[:3] * 2)
    assert (tj.stats(jitted).entries, tj.stats(jitted).misses) == (2, 2)


def test_an_interrupt_after_publishing_takes_the_entry_back() -> None:
    jitted = tj.jit(lambda x: x * 2)
    x = torch.arange(6.0)
    with pytest.MonkeyPatch.context() as patch:
        injector = Injector(KeyboardInterrupt, 2)  # the second event: it has returned
        entries = _owner("tj_torch.dispatch.entries.Entries._refresh")[0]
        patch.setattr(entries, "_refresh", injector.around(entries._refresh, "_refresh"))
        with pytest.raises(KeyboardInterrupt):
            jitted(x)
    assert (tj.stats(jitted).calls, tj.stats(jitted).entries) == (0, 0)
    same(jitted(x), x * 2)
    assert (tj.stats(jitted).hits, tj.stats(jitted).misses) == (0, 1)


def test_a_warning_that_raises_leaves_no_evicted_entry() -> None:
    session = Session(plugins=["torch"], overrides={"max_entries": 1})
    jitted = tj.jit(lambda x: x + 1, session=session, dynamic=False)
    jitted(torch.ones(2))
    with pytest.raises(tj.TjWarning, match="longest is dropped"):
        jitted(torch.ones(3))
    stats = tj.stats(jitted)
    assert (stats.entries, stats.misses, stats.evicted) == (1, 2, 1)
    jitted(torch.ones(3))
    assert tj.stats(jitted).hits == 1


@pytest.mark.parametrize("edit", ["graph", "forward"])
def test_an_interrupted_renewal_is_done_again(edit: str) -> None:
    module = torch.fx.symbolic_trace(lambda x: torch.sin(x))
    jitted = tj.jit(module, frontend="fx")
    x = torch.arange(3.0)
    same(jitted(x), x.sin())
    if edit == "graph":
        next(n for n in module.graph.nodes if n.target is torch.sin).target = torch.cos
        module.recompile()
    else:
        module.forward = lambda x: torch.cos(x)
    for point in ("fx.FxPrograms._shell", "entries.Entries.clear", "fx.is_recompiled"):
        if edit == "graph" or point != "fx.is_recompiled":  # not asked for a forward of its own
            interrupted(jitted, x, f"tj_torch.dispatch.{point}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)  # a forward of its own runs as it is
        same(jitted(x), x.cos())
        same(jitted(x), x.cos())
