"""Kernels that are compiled behind calls (``compile="background"``), on vectors."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
from tj_core.compile.kept_regions import KeptRegions
from tj_core.compile.worker import Worker, worker
from tj_core.contract.executors import Executor
from tj_core.contract.fusion import Fusion
from tj_core.contract.rules import RuleTable
from tj_core.disk import Entries
from tj_core.errors import ConfigError, PluginError, TjWarning
from tj_core.host.hookspecs import hookimpl
from tj_core.host.session import Session
from tj_core.testing.fusing import LoopPlugin, one_by_one
from tj_core.testing.numeric import NumericPlugin

if TYPE_CHECKING:
    from tj_core.contract.fusion import Fused, FusionRegion

pytestmark = pytest.mark.usefixtures("own_project")

X, Y = [1.0, -2.0, 4.0], [0.5, 3.0, 2.0]


class SlowPlugin(LoopPlugin):
    """Loops that are compiled when ``go`` is set; ``there`` is set when that begins.

    ``fails`` is what compilation raises; ``ran`` counts the runs of loops.
    """

    def __init__(self, fails: Exception | None = None, **more: Any) -> None:
        super().__init__(change=self.counting, **more)
        self.there, self.go = threading.Event(), threading.Event()
        self.fails = fails
        self.ran = 0
        self.threads: list[str] = []

    def fuse(self, region: FusionRegion) -> Fused:
        self.threads.append(threading.current_thread().name)
        self.there.set()
        assert self.go.wait(60)
        if self.fails is not None:
            raise self.fails
        return super().fuse(region)

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self.ran += 1
            return function(*args)

        return run


@pytest.fixture
def slow() -> Iterator[SlowPlugin]:
    made = SlowPlugin()
    yield made
    made.go.set()
    assert worker().wait(60)


def session(plugin: Any, **config: Any) -> Session:
    return Session([plugin, NumericPlugin()], overrides={"check": 2, **config})


def behind(f: Callable[..., Any], plugin: Any, **config: Any) -> Any:
    return tj.jit(f, session=session(plugin, **config), compile="background")


def chain(x: Any, y: Any) -> Any:
    return -(x + y) * x


def expected(x: list[float], y: list[float]) -> list[float]:
    return [-(a + b) * a for a, b in zip(x, y, strict=True)]


def test_calls_run_without_the_kernel_until_it_is_there(slow: SlowPlugin) -> None:
    g = behind(chain, slow)
    for _ in range(3):
        assert g(X, Y) == expected(X, Y)
    assert slow.there.wait(60)
    assert tj.stats(g).region_waiting == 1
    (use,) = tj.explain(g).regions
    assert use.kernel.waiting
    assert "waits for its kernel" in str(tj.explain(g))
    assert not tj.wait(g, timeout=0.01)
    slow.go.set()
    assert tj.wait(g, timeout=60)
    assert (slow.ran, tj.stats(g).region_waiting) == (0, 0)
    assert g(X, Y) == expected(X, Y)
    assert slow.ran == 2, "a new kernel runs twice, as in any first run"
    assert g(Y, X) == expected(Y, X)
    assert slow.ran == 3
    assert "waits" not in str(tj.explain(g))
    assert slow.threads == ["tj-compile"]


def test_the_option_has_two_values_and_is_in_the_config() -> None:
    with pytest.raises(ConfigError, match='compile must be "call" or "background"'):
        tj.jit(chain, compile="later")
    plugin = SlowPlugin()
    g = tj.jit(chain, session=session(plugin, compile="background"))
    assert g(X, Y) == expected(X, Y)
    assert plugin.there.wait(60)
    plugin.go.set()
    assert tj.wait(g, 60)
    plugin = SlowPlugin()
    plugin.go.set()
    g = tj.jit(chain, session=session(plugin, compile="background"), compile="call")
    assert g(X, Y) == expected(X, Y)
    assert plugin.threads == ["MainThread"]


def test_a_program_that_finds_its_kernels_runs_them_at_once(slow: SlowPlugin) -> None:
    slow.go.set()
    here = session(slow)
    assert tj.jit(chain, session=here)(X, Y) == expected(X, Y)
    g = tj.jit(lambda x, y: chain(x, y), session=here, compile="background")
    before = slow.ran
    assert g(X, Y) == expected(X, Y)
    assert slow.ran > before
    assert slow.threads == ["MainThread"]


def test_two_programs_of_one_region_compile_it_once(slow: SlowPlugin) -> None:
    here = session(slow)
    f, g = (
        tj.jit(h, session=here, compile="background") for h in (chain, lambda x, y: chain(x, y))
    )
    assert f(X, Y) == g(X, Y) == expected(X, Y)
    slow.go.set()
    assert tj.wait(f, 60)
    assert tj.wait(g, 60)
    assert f(X, Y) == g(X, Y) == expected(X, Y)
    assert len(slow.compiled) == 1


def test_a_program_that_does_not_wait_compiles_for_itself(slow: SlowPlugin) -> None:
    here = session(slow)
    f = tj.jit(chain, session=here, compile="background")
    assert f(X, Y) == expected(X, Y)
    assert slow.there.wait(60)
    slow.go.set()
    g = tj.jit(lambda x, y: chain(x, y), session=here)
    assert g(X, Y) == expected(X, Y)
    assert slow.ran
    assert tj.wait(f, 60)
    assert f(X, Y) == expected(X, Y)


def test_a_kernel_that_is_wrong_is_found_when_it_is_put_in(slow: SlowPlugin) -> None:
    slow.change = lambda function: lambda *args: [v[:1] for v in function(*args)]
    slow.go.set()
    g = behind(chain, slow)
    assert g(X, Y) == expected(X, Y)
    assert tj.wait(g, 60)
    with pytest.warns(TjWarning, match="result 0 has shape"):
        assert g(X, Y) == expected(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert g(X, Y) == expected(X, Y)


@pytest.mark.parametrize("waits", [False, True])
def test_a_failure_is_one_warning_in_a_call_or_where_it_is_waited_for(waits: bool) -> None:
    plugin = SlowPlugin(fails=RuntimeError("no compiler"))
    g = behind(chain, plugin)
    assert g(X, Y) == expected(X, Y)
    plugin.go.set()
    assert worker().wait(60)
    with pytest.warns(TjWarning, match="no compiler.*run one by one") as said:
        if waits:
            assert tj.wait(g)
        assert g(X, Y) == expected(X, Y)
        assert g(X, Y) == expected(X, Y)
    assert len(said) == 1
    assert "runs one by one: no compiler" in str(tj.explain(g))


def test_a_failure_is_an_error_in_strict_mode() -> None:
    plugin = SlowPlugin(fails=RuntimeError("no compiler"))
    g = behind(chain, plugin, strict=True)
    assert g(X, Y) == expected(X, Y)
    plugin.go.set()
    assert worker().wait(60)
    with pytest.raises(PluginError, match="no compiler"):
        g(X, Y)
    assert g(X, Y) == expected(X, Y)


def test_kernels_are_put_in_between_calls_of_several_threads(slow: SlowPlugin) -> None:
    g = behind(lambda x, y: chain(x, y) + chain(y, x), slow)
    wanted = [a + b for a, b in zip(expected(X, Y), expected(Y, X), strict=True)]
    wrong: list[Any] = []
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            found = g(X, Y)
            if found != wanted:
                wrong.append(found)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert slow.there.wait(60)
    slow.go.set()
    assert tj.wait(g, 60)
    ran = slow.ran
    while slow.ran < ran + 20:
        pass
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_who_waits_does_not_overtake_who_queues(
    slow: SlowPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = behind(chain, slow)
    slow.go.set()
    began, go, put = threading.Event(), threading.Event(), Worker.put

    def late(*args: Any) -> None:
        began.set()
        assert go.wait(60)
        put(*args)

    monkeypatch.setattr(Worker, "put", late)
    thread = threading.Thread(target=g, args=(X, Y))
    thread.start()
    assert began.wait(60)
    threading.Timer(0.2, go.set).start()
    assert tj.wait(g, 60)
    thread.join()


def test_a_program_without_owner_is_not_compiled(slow: SlowPlugin) -> None:
    plugin = SlowPlugin()
    first, second = behind(chain, slow), behind(chain, plugin)
    first(X, Y)
    assert slow.there.wait(60)
    second(X, Y)
    waits = weakref.ref(second.__tj__.last.compilation.behind)
    del second
    gc.collect()
    assert waits() is None
    slow.go.set()
    assert worker().wait(60)
    assert not plugin.compiled


def in_child(g: Any, go: Any, found: Any) -> None:
    go.set()
    found.put((g(X, Y), tj.wait(g, 60), g(X, Y), tj.stats(g).region_waiting))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_process_compiles_for_itself(slow: SlowPlugin) -> None:
    g = behind(chain, slow)
    assert g(X, Y) == expected(X, Y)
    assert slow.there.wait(60)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=in_child, args=(g, slow.go, found))
    child.start()
    assert found.get(timeout=60) == (expected(X, Y), True, expected(X, Y), 0)
    child.join(60)
    assert child.exitcode == 0


EXIT = """
import sys, time
sys.path.insert(0, {folder!r})
from test_behind import SlowPlugin, X, Y, behind, chain

class Sleeping(SlowPlugin):
    def fuse(self, region):
        print("begins", flush=True)
        self.there.set()
        time.sleep(0.3)
        print("ends", flush=True)
        return super().fuse(region)

plugin = Sleeping()
plugin.go.set()
f, g = behind(chain, plugin), behind(lambda x, y: chain(x, y) * y, plugin)
f(X, Y), g(X, Y)
plugin.there.wait(60)
"""


def test_a_process_ends_when_the_region_at_hand_is_compiled(tmp_path: Any) -> None:
    text = EXIT.format(folder=os.path.dirname(__file__))
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "begins\nends\n", "")


class KeptPlugin:
    """Loops that are kept on disk; ``compiled`` counts those that were not found there."""

    tj_name = "kept"

    def __init__(self) -> None:
        self.loops, self.compiled = LoopPlugin(), 0

    @hookimpl
    def tj_executors(self) -> tuple[Executor, ...]:
        fusion = Fusion(
            self.loops.can_fuse,
            self.fuse,
            restore=lambda region, text: one_by_one(region),
            fingerprint=lambda: "loops",
        )
        return (Executor("kept", RuleTable("claim"), fusion=fusion),)

    def fuse(self, region: FusionRegion) -> Fused:
        self.compiled += 1
        return replace(self.loops.fuse(region), kept="loops")


def test_what_was_compiled_behind_is_on_disk_for_later_sessions(tmp_path: Any) -> None:
    def later() -> tuple[Any, KeptPlugin]:
        plugin = KeptPlugin()
        here = session(plugin)
        entries = Entries(tmp_path / "regions")
        here.regions.kept = KeptRegions(entries, here.executors, lambda: "session")
        return tj.jit(chain, session=here, compile="background"), plugin

    g, plugin = later()
    assert g(X, Y) == expected(X, Y)
    assert tj.wait(g, 60)
    assert g(X, Y) == expected(X, Y)
    assert plugin.compiled == 1
    g, plugin = later()
    assert g(X, Y) == expected(X, Y)
    stats = tj.stats(g)
    assert (stats.region_kept, stats.region_waiting, plugin.compiled) == (1, 0, 0)
