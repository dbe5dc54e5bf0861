"""Small programs that show whether names of PyTorch outside of Dynamo do what tj uses them for.

Some ask the names themselves, since what a wrong answer costs is seen in few programs.
"""

from __future__ import annotations

import warnings
from typing import Any

import tj_core as tj
import torch
from torch.autograd import forward_ad, graph
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from tj_torch.capture.eager_probe import captured_whole, equal_to_eager, jitted, scope_of
from tj_torch.guards.ambient import ambient_mode
from tj_torch.runtime import thread_state
from tj_torch.runtime.forms import Form, form_of
from tj_torch.torch_private import ops, runtime

__all__: list[str] = []


class _Seeing(TorchFunctionMode):
    """A mode that counts what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen += 1
        return function(*args, **(kwargs or {}))


def modes() -> None:
    """See that each mode is seen while a function runs in it."""
    found: list[str | None] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        found.append(ambient_mode())
        return x.sum()

    x = torch.ones(2)
    f(x)
    with _Seeing():
        f(x)
    with FlopCounterMode(display=False):
        f(x)
    with forward_ad.dual_level():
        f(x)
    torch.func.grad(f)(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated from Python 3.14 on
        torch.jit.trace(f, (x,), check_trace=False)
    f(x)
    named = "a __torch_function__ mode", "a dispatch mode", "forward-mode AD"
    expected = [None, *named, "a torch.func transform", "torch.jit.trace", None]
    assert found == expected, f"modes are {found}"


def threads() -> None:
    """See that what is entered and not left is left at the end."""
    mode: Any = _Seeing()
    with torch.enable_grad():
        found = thread_state.snapshot()
        torch.set_grad_enabled(False)
        mode.__enter__()
        forward_ad.enter_dual_level()
        graph.disable_saved_tensors_hooks("planted").__enter__()
        thread_state.restore(found)
        assert torch.is_grad_enabled(), "gradients stay off"
    seen = mode.seen
    torch.ones(1)
    assert mode.seen == seen, "a mode stays on"
    with graph.saved_tensors_hooks(lambda x: x, lambda x: x):  # raises where they are forbidden
        assert runtime.saved_tensors_are_hooked(), "hooks on saved tensors are not seen"
    try:
        forward_ad.exit_dual_level()
    except RuntimeError:
        return
    raise AssertionError("a level of forward-mode AD stays entered")


def operators() -> None:
    """See that operators are found, and what they write."""
    captured_whole(
        """
def f(x, y):
    torch.add(x, 1, out=y)
    return torch.ops.aten.mul.Tensor(y, 2), torch.nn.functional.linear(x, x), y
""",
        "f(torch.ones(2, 2), torch.ones(2, 2))",
    )
    assert "add" in runtime.operator_names("aten"), "operators are not listed"
    assert runtime.has_kernel("aten::mm", "AutocastCPU"), "kernels of autocast are not known"
    assert ops.python_functions("relu"), "functions that PyTorch generates are not known"
    node = torch.nn.Linear(1, 1)(torch.ones(1, 1)).grad_fn
    assert not isinstance(node, ops.autograd_function_node()), "a node is taken for a Function's"


def runs() -> None:
    """See that writes, views and bits of tensors without data are those of eager."""
    captured_whole(
        """
def f(x):
    y = x * 1
    y[0].mul_(2)
    z = torch.complex(y, y).conj()
    return y.t_(), z, z.imag
""",
        "f(torch.ones(2, 3))",
    )


def forms() -> None:
    """See that tensors are told apart by their keys."""
    found = [
        form_of(torch.ones(2)),
        form_of(torch.ones(2, dtype=torch.complex64).conj()),
        form_of(torch.ones(2).to_sparse()),
    ]
    assert found == [Form.PLAIN, Form.BITS, Form.OTHER], f"forms are {found}"


def views() -> None:
    """See that views, versions and shared memory are seen, and versions are set."""
    x = torch.ones(2, 2)
    view = x[0]
    assert ops.base_of(view) is x, "a view has no base"
    assert view._is_view(), "a view is none"
    assert ops.storage_id(view) == ops.storage_id(x), "a view does not share memory"
    assert ops.storage_id(x.clone()) != ops.storage_id(x), "a copy shares memory"
    view.add_(1)
    assert x._version == 1, "a write is not counted"
    runtime.set_version_counter(x, 5)
    assert x._version == 5, "a version is not set"
    leaf = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        hidden = (leaf * 1)[:1], leaf[:1]
    assert ops.survives_writes(x[0]), "a view must not be written"
    assert not ops.survives_writes(hidden[1]), "a view of a leaf may be written"
    assert not runtime.unsafe_view(x, [4])._is_view(), "a new value is a view"


def gradients() -> None:
    """See that the engine gives gradients, and says whether it keeps its graph."""
    x = torch.ones(2, requires_grad=True)
    with torch.enable_grad():
        y = (x * x).sum()
    kept: list[bool] = []
    x.register_hook(lambda grad: kept.append(runtime.backward_keeps_graph()))
    for again in (True, False):
        y.backward(retain_graph=again)
    assert kept == [True, False], f"a backward keeps its graph: {kept}"
    with torch.enable_grad():
        y = (x * x).sum()
    with runtime.outside_levels():
        (found,) = runtime.engine_gradients([y], [x], [torch.ones(())], create_graph=False)
    assert found is not None
    assert found.tolist() == [2.0, 2.0], f"a gradient is {found}"


def flags() -> None:
    """See that another value of a flag is another program."""
    x, mkldnn = torch.ones(2, 2), torch.backends.mkldnn
    with scope_of("def f(x): return x @ x") as scope, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of flags for GPUs that are set with it
        program = jitted(scope["f"], tj.Session(["torch"]))
        for enabled in (True, False):
            with mkldnn.flags(enabled=enabled):
                program(x)
    found = tj.stats(program).misses
    assert found == 2, f"{found} programs for two values of a flag"


devices = equal_to_eager(
    """
x = torch.ones(2)
def f(x): return x + torch.ones(2)
def under():
    with torch.device("cpu"):
        return f(x)
""",
    "f(x)", "under()",
)  # fmt: skip

autocast = equal_to_eager(
    """
x = torch.ones(2, 2)
def f(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
    return y, x @ x
""",
    "f(x)", "torch.is_autocast_enabled('cpu')",
)  # fmt: skip

inference = equal_to_eager(
    """
x = torch.ones(2, requires_grad=True)
def f(x):
    with torch.inference_mode():
        y = x * 2
    return y, x * 3
""",
    "[(y.is_inference(), y.requires_grad) for y in f(x)]", "torch.is_inference_mode_enabled()",
)  # fmt: skip

attention = equal_to_eager(
    """
from torch.nn.attention import SDPBackend, sdpa_kernel
x = torch.ones(1, 1, 4, 8)
def f(x):
    with sdpa_kernel(SDPBackend.MATH):
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    return y, torch.nn.functional.scaled_dot_product_attention(x, x, x)
""",
    "f(x)", "torch.backends.cuda.flash_sdp_enabled()",
)  # fmt: skip


def convolutions() -> None:
    """See that the kernel of a convolution is known."""
    x, weight = torch.ones(1, 1, 3, 3, dtype=torch.float64), torch.ones(1, 1, 2, 2).double()
    grad = torch.ones(1, 1, 2, 2).double()
    args = (grad, x, weight, [1], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    found = ops.convolution_backend(args)
    assert found == "Slow2d", f"a convolution runs {found!r}"


def _follows(text: str) -> None:
    """See that the last call of ``f``, a cosine, has an expansion."""
    with scope_of(text) as scope, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = jitted(scope["f"], tj.Session(["torch"]))
        f(torch.ones(3))
        last = tj.last_trace(f).calls[-1]
        assert last.symbol.qualname == "torch.cos", f"the last call is {last.symbol.qualname}"
        assert last.body is not None, "what comes before is not known by its name"


def levels() -> None:
    """See that calls after transforms of torch.func are expanded."""
    _follows("""
from torch.func import grad, jvp, vmap
def f(x):
    y = vmap(grad(torch.sin))(x)
    return jvp(torch.sin, (y,), (y,))[1].cos()
""")


def notes() -> None:
    """See that calls after a note are expanded."""
    _follows("""
def f(x):
    torch._C._log_api_usage_once("tj.probe")
    return x.cos()
""")
