"""Products in regions return new tensors, where Inductor allocates them before."""

from __future__ import annotations

import tj_core as tj
import torch
from tj_inductor.adapter import modules, products

TEXT = """
    def call(self, args):
        buf0 = empty_strided_cpu((16, 64), (64, 1), torch.float32)
        # Topologically Sorted Source Nodes: [], Original ATen: []
        extern_kernels.addmm(arg1_1, arg2_1, reinterpret_tensor(arg0_1), alpha=1, beta=1, out=buf0)
        buf1 = empty_strided_cpu((16, 64), (1, 16), torch.float32)
        extern_kernels.mm(buf0, arg3_1, out=buf1)
        buf2 = buf0; del buf0  # reuse
        cpp_fused_0(buf2)
        buf3 = empty_strided_cpu((64, 64), (64, 1), torch.float32)
        cpp_fused_1(arg1_1, buf3)
        return (buf1, buf2, buf3, )

runner = Runner(partitions=[])
"""


def test_a_contiguous_result_is_returned() -> None:
    made = products.with_new_results(TEXT)
    assert "buf0 = extern_kernels.addmm(arg1_1, arg2_1, reinterpret_tensor(" in made
    assert "alpha" not in made
    assert made.count("empty_strided_cpu") == 2
    assert "extern_kernels.mm(buf0, arg3_1, out=buf1)" in made


def test_versions_are_those_of_written_results() -> None:
    assert modules._new(TEXT) == [0, 1]
    assert modules._new(products.with_new_results(TEXT)) == [0]


def test_other_scales_stay() -> None:
    text = TEXT.replace("alpha=1, beta=1", "alpha=2, beta=1")
    assert "alpha=2, beta=1)" in products.with_new_results(text)


def test_products_in_a_region() -> None:
    def program(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(torch.addmm(b, x, w))
        z = torch.bmm((y * 2)[None], w[None]) + 1
        return torch.addmm(b, y + 1, w, alpha=2, beta=0.5), (x + 1) @ w @ w, z, y

    overrides = {"strict": True, "inductor": {"minimum": 1}}
    jitted = tj.jit(program, session=tj.Session(("inductor", "torch"), overrides=overrides))
    args = torch.randn(5, 4), torch.randn(4, 4), torch.randn(4)
    for _ in range(3):
        for mine, theirs in zip(jitted(*args), program(*args), strict=True):
            torch.testing.assert_close(mine, theirs)
            assert (mine._version, mine.stride()) == (0, theirs.stride())
