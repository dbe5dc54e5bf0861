"""Streams, memory, graphs, collectives and kernels of the device itself."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("on_gpu")

close = torch.testing.assert_close


def program(x: torch.Tensor) -> torch.Tensor:
    return ((x * 2 + 1).tanh() * x).softmax(-1) + x.mean()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))


def test_streams(jit: Any) -> None:
    """Calls on other streams run there, and their memory is used again on the right one."""
    f = jit(program)
    xs = [torch.randn(512, 512) for _ in range(3)]
    expected = [program(x) for x in xs]
    f(xs[0])
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    for _ in range(10):
        results = []
        for x, stream in zip(xs, streams, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(200_000)
                results.append(f(x))
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        close(results, expected)


def test_a_backward_runs_on_the_streams_of_its_forward(jit: Any) -> None:
    torch.manual_seed(0)
    eager = network()
    mine = copy.deepcopy(eager)
    f, side = jit(mine), torch.cuda.Stream()
    for x in (torch.randn(32, 64) for _ in range(5)):
        eager(x).square().sum().backward()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(500_000)
            y = f(x).square().sum()
        torch.cuda.current_stream().wait_stream(side)
        y.backward()
    close(
        [p.grad for p in mine.parameters()],
        [p.grad for p in eager.parameters()],
        rtol=1e-3,
        atol=1e-4,
    )


def test_threads_with_streams_of_their_own(jit: Any) -> None:
    f, wrong = jit(program), []
    f(torch.randn(64, 64))

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in range(20):
                x = torch.randn(64, 64, device="cuda") + number + i
                if not torch.allclose(f(x), program(x), rtol=1e-4, atol=1e-5):
                    wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_streams_inside_of_a_program_are_right(as_installed: Any) -> None:
    side = torch.cuda.Stream()

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y.sin() + 1
        torch.cuda.current_stream().wait_stream(side)
        return z + y

    g, x = as_installed(f), torch.randn(256, 256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tj.TjWarning)
        for _ in range(4):
            close(g(x), f(x))


def test_in_a_graph_of_the_users(jit: Any) -> None:
    f, x = jit(program), torch.randn(64, 64)
    for _ in range(4):
        f(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
    for _ in range(3):
        x.normal_()
        graph.replay()
        close(y, program(x))


def test_a_training_step_in_a_graph_of_the_users(jit: Any) -> None:
    torch.manual_seed(0)
    model = network()
    f, x = jit(model), torch.randn(32, 64)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            f(x).square().sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f(x).square().sum().backward()
    for _ in range(3):
        x.normal_()
        graph.replay()
        wanted = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
        close([p.grad for p in model.parameters()], [*wanted], rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch.compile's first one is
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_graphs_beside_those_of_torch_compile(jit: Any) -> None:
    """torch.compile frees the workspaces of cuBLAS, which no graph may still write to."""
    torch.manual_seed(0)
    eager = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    mine, theirs = copy.deepcopy(eager), copy.deepcopy(eager)
    f, other = jit(mine), torch.compile(theirs, mode="reduce-overhead")
    for i in range(8):
        x = torch.randn(256, 512)
        for run in (f, other, eager):
            torch.compiler.cudagraph_mark_step_begin()
            run(x).square().sum().backward()
        torch.cuda.synchronize()
        if i % 2:
            torch.cuda.empty_cache()
            torch.full((2**24,), float("nan"))  # what is free has garbage
    for model in (mine, theirs):
        grads = ([p.grad for p in m.parameters()] for m in (model, eager))
        close(*map(list, grads), rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_graphs_free_their_memory(jit: Any) -> None:
    def used() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    def run() -> None:
        f = jit(lambda x: program(x) * 3)
        for _ in range(5):
            f(torch.randn(1024, 1024))

    run()
    before = used()
    for _ in range(5):
        run()
    torch.compiler.reset()
    assert used() <= before + 64 * 2**20


def peak(model: nn.Module, run: Any, x: torch.Tensor) -> int:
    for _ in range(4):
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(x).float().square().mean().backward()
        torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def test_a_training_step_needs_no_more_memory_than_eagers(jit: Any, kind: str) -> None:
    if kind in ("cudagraph", "all"):
        pytest.skip("graphs have memory of their own, which docs/cudagraph.md says")

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(
                    nn.LayerNorm(512), nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)
                )
                for _ in range(4)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Blocks with residuals."""
            for block in self.blocks:
                x = x + block(x)
            return x

    torch.manual_seed(0)
    model, x = Deep(), torch.randn(4096, 512)
    ours, theirs = peak(model, jit(model), x), peak(model, model, x)
    print(f"\npeak of a step, {kind}: {ours / 2**20:.0f} MiB, eager {theirs / 2**20:.0f}")
    assert ours <= 1.05 * theirs


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_calls_do_not_wait_for_the_device(as_installed: Any) -> None:
    """Nothing in a warm call synchronizes: a step is prepared while the device is busy."""
    torch.manual_seed(0)
    model, x = network(), torch.randn(32, 64)
    f = as_installed(model)
    for _ in range(5):
        f(x).square().sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            f(x).square().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_each_kernel_of_attention_in_a_region_of_nvfuser() -> None:
    """With ``sdpa`` and the other options on, a block of a GPT trains."""
    session = tj.Session(
        ("nvfuser", "autograd", "torch"),
        overrides={"strict": True, "nvfuser": {"matmul": True, "sdpa": True, "minimum": 1}},
    )

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 0.5, k, v + 1, is_causal=True) * 2

    g = tj.jit(f, session=session)
    xs = [torch.randn(2, 4, 128, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    for _ in range(3):
        y, z = f(*xs), g(*xs)
        wanted, got = (torch.autograd.grad(o.float().square().sum(), xs) for o in (y, z))
        close((z, got), (y, wanted), rtol=2e-2, atol=2e-2)
    assert all(use.kernel.failure is None for use in tj.explain(g).regions)


def test_random_numbers_of_nvfuser() -> None:
    """With ``random`` regions draw: the share that dropout keeps, other numbers in each call."""
    session = tj.Session(
        ("nvfuser", "autograd", "torch"),
        overrides={"strict": True, "nvfuser": {"random": True, "minimum": 1}},
    )
    f = tj.jit(lambda x: F.dropout(x * 2, 0.25) + 0.0, session=session)
    x = torch.ones(1000, 1000, requires_grad=True)
    ys = [f(x) for _ in range(3)]
    for y in ys:
        assert abs((y != 0).float().mean().item() - 0.75) < 0.01
        (g,) = torch.autograd.grad(y.sum(), x)
        close(g, y.detach())
    assert not torch.equal(ys[0], ys[1])
    torch.manual_seed(3)
    again = f(x)
    torch.manual_seed(3)
    close(f(x), again)


@pytest.fixture
def group(tmp_path: Path) -> Any:
    """A process group of one process, with NCCL."""
    import torch.distributed as dist

    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def distributed(kind: str = "exact", **options: Any) -> tj.Session:
    fuser = {"exact": (), "nvfuser": ("nvfuser",), "inductor": ("inductor",)}[kind]
    plugins = ("distributed", *fuser, "subclass", "autograd", "torch")
    return tj.Session(plugins, overrides={"strict": True, "fullgraph": False, **options})


def test_collectives_of_nccl(group: Any) -> None:
    import torch.distributed._functional_collectives as funcol

    def f(x: torch.Tensor) -> Any:
        y = funcol.all_gather_tensor(x * 2, 0, group)
        z = funcol.all_reduce(y.sin(), "sum", group)
        return funcol.reduce_scatter_tensor(z + 1, "sum", 0, group) + x

    g = tj.jit(f, session=distributed())
    for _ in range(5):
        x = torch.randn(64, 64)
        close(g(x), f(x))


@pytest.mark.filterwarnings("ignore:It seems like you did not set/select:UserWarning")
@pytest.mark.parametrize("how", ["DDP(jit)", "jit(DDP)", "fully_shard(jit)", "shard"])
def test_training_with_nccl(group: Any, how: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel as DDP

    mesh = init_device_mesh("cuda", (1,))
    torch.manual_seed(0)
    eager = network()
    mine = copy.deepcopy(eager)
    session = distributed()
    if how == "DDP(jit)":
        f = DDP(tj.jit(mine, session=session))
    elif how == "jit(DDP)":
        f = tj.jit(DDP(mine), session=session)
    elif how == "fully_shard(jit)":
        f = tj.jit(mine, session=session)
        fully_shard(f, mesh=mesh)
    else:
        import tj_distributed

        tj_distributed.shard(mine, mesh)
        f = tj.jit(mine, session=session)
    params = [*f.parameters()]
    optimizers = [torch.optim.SGD(p, 0.1) for p in (params, [*eager.parameters()])]
    for _ in range(4):
        x = torch.randn(32, 64)
        for run, optimizer in zip((f, eager), optimizers, strict=True):
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in params]
    close(whole, [*eager.parameters()], rtol=1e-4, atol=1e-5)


def test_what_a_user_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session with all plugins and no option fuses by nvFuser, forward and backward."""
    for name in ("TJ_STRICT", "TJ_CHECK", "TJ_DISABLE", "TJ_PLUGINS", "TJ_FULLGRAPH"):
        monkeypatch.delenv(name, raising=False)
    session = tj.Session()
    torch.manual_seed(0)
    eager = network()
    mine = copy.deepcopy(eager)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        f = tj.jit(mine, session=session)
        for _ in range(5):
            x = torch.randn(32, 64)
            for run in (f, eager):
                run(x).square().sum().backward()
    print([str(w.message) for w in said])
    assert [w for w in said if issubclass(w.category, tj.TjWarning)] == []
    close(
        [p.grad for p in mine.parameters()],
        [p.grad for p in eager.parameters()],
        rtol=1e-3,
        atol=1e-3,
    )
    executors = {call.executor for call in tj.last_trace(f).calls}
    assert executors & {"nvfuser", "cudagraph"}, executors


def test_packages_of_programs_on_a_gpu(tmp_path: Path) -> None:
    """Exported and loaded, or refused with a reason."""
    x = torch.randn(8, 8)
    try:
        package = tj.export(program, (x,))
    except tj.TjError as error:
        print(error)
        return
    path = tmp_path / "program.tjp"
    package.save(path)
    close(tj.load(path)(x), program(x))
